"""Adapters of fake workers: what has become of each is told by its source. No torch."""

from collections.abc import Mapping

from tests.support.fake_tokens import fake_fingerprint

from polyfleet.v1 import fleet_pb2 as fleet


def fake_adapters(sources: Mapping[str, str]) -> list[fleet.Adapter]:
    """By name; one whose source says `bad` could not be loaded."""
    return [
        fleet.Adapter(name=name, source=source, problem=f"{source}: is no adapter")
        if "bad" in source
        else fleet.Adapter(name=name, source=source, rank=8, fingerprint=fake_fingerprint(source))
        for name, source in sorted(sources.items())
    ]
