"""Adapters as callers name them: their own names, or a model's with theirs behind a colon. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.adapters import SEPARATOR


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter of a model of the fleet. `fingerprint` is empty until a ready worker has it; `problem` says why none
    can, where one has tried.
    """

    name: str
    model: str
    fingerprint: str = ""
    problem: str = ""


def adapters_of(model: str, infos: Iterable[pb.ModelInfo], wishes: Iterable[pb.ModelDeployment]) -> list[ServedAdapter]:
    """Those of one model, by name: what its ready workers say, and deployments that wish for them.

    Of workers that differ in one's numbers the most prevail, of equally many the least fingerprint.
    """
    found: dict[str, Counter[str]] = {each.name: Counter() for wish in wishes for each in wish.adapters}
    problems: dict[str, str] = {}
    for each in (adapter for info in infos for adapter in info.adapters):
        prints = found.setdefault(each.name, Counter())
        if each.fingerprint:
            prints[each.fingerprint] += 1
        else:
            problems[each.name] = each.problem
    adapters = []
    for name, prints in sorted(found.items()):
        chosen = min(prints, key=lambda each: (-prints[each], each)) if prints else ""
        adapters.append(ServedAdapter(name, model, chosen, "" if chosen else problems.get(name, "")))
    return adapters


def by_served_name(adapters: Collection[ServedAdapter], models: Collection[str]) -> Mapping[str, ServedAdapter]:
    """What requests may call them: `model:adapter`, and `adapter` where nothing else has that name."""
    counts = Counter(each.name for each in adapters)
    names = {f"{each.model}{SEPARATOR}{each.name}": each for each in adapters}
    names |= {each.name: each for each in adapters if counts[each.name] == 1}
    return {name: each for name, each in names.items() if name not in models}


def listed_name(adapter: ServedAdapter, names: Mapping[str, ServedAdapter]) -> str:
    """The one that a list of models shows."""
    return adapter.name if adapter.name in names else f"{adapter.model}{SEPARATOR}{adapter.name}"
