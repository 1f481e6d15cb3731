"""What `bench.apart` says of its fleet, in short: smaller gaps at the same throughput, or no separation."""

from bench.apart import rows


def test_apart_halves_the_gaps_and_keeps_the_throughput() -> None:
    found = {row.name: row for row in rows(400, 0.7)}
    gap, speed = found["apart_gap_p99"].ratio, found["apart_tokens_per_second"].ratio
    assert gap is not None
    assert gap <= 0.5
    assert speed is not None
    assert speed >= 0.95
    shares = {name: row.value or 0.0 for name, row in found.items()}
    assert shares["apart_apart"] > 0.9
    assert shares["apart_share_alone"] <= 0.1
    assert shares["apart_share_slow_link"] == shares["apart_share_short"] == 0
    # where taking prompts in costs what computing them does, both workers do all
    assert shares["apart_share_costly"] <= 0.1
    assert (found["apart_costly_tokens_per_second"].ratio or 0.0) >= 0.95
    assert (found["apart_costly_gap_p99"].ratio or 9.0) <= 1.1
