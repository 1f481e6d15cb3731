"""What one rank of a group has of a model: its graph, and its parts of the weights."""

from collections.abc import Iterator
from dataclasses import replace

from polyfleet.engine.choosing.executors import Workload
from polyfleet.graph.adapt import adaptable
from polyfleet.graph.shard import Cut, Shard, StackCut, shard
from polyfleet.kernels.adapters import LowRank, Parts
from polyfleet.kernels.weights.cutting import part_of
from polyfleet.kernels.weights.weight import Weight, Weights
from polyfleet.loading.headers import PART
from polyfleet.loading.placing import Keep


def of_rank(workload: Workload, rank: int, size: int) -> Workload:
    """What one rank computes. Raises NotSharded."""
    mine = shard(workload.graph, rank, size)
    return replace(workload, graph=mine.graph, weights=weights_of(mine, workload.weights))


def weights_of(mine: Shard, weights: Weights) -> Weights:
    """The weights that a rank's graph reads."""
    keep = keeping(mine)
    return {part.name: part for weight in weights.values() for part in keep(weight)}


def adapter_of(mine: Shard, parts: Parts) -> Parts:
    """A rank's matrices of an adapter: the rows of `up` and the columns of `down` that it has of each weight."""
    found = {}
    for name in adaptable(mine.graph):
        cut = mine.cuts.get(name)
        part = parts.get(cut.source if cut else name)
        if part is not None and isinstance(cut, Cut):
            (first, end), (left, right) = ((start, stop or None) for start, stop in (cut.rows, cut.columns))
            part = LowRank(part.down[:, left:right].contiguous(), part.up[first:end].contiguous())
        if part is not None:
            found[name] = part
    return found


def keeping(mine: Shard) -> Keep:
    """What a rank's graph reads of a weight, or of one expert's in a stack."""
    wanted: dict[str, list[Cut | StackCut | None]] = {}
    for name in dict.fromkeys(name for op in mine.graph.ops for name in (*op.weights, *op.biases)):
        cut = mine.cuts.get(name)
        wanted.setdefault(cut.source if cut else name, []).append(cut)

    def keep(weight: Weight) -> Iterator[Weight]:
        expert = PART.fullmatch(weight.name)
        for cut in wanted.get(expert[1] if expert else weight.name, ()):
            if expert and isinstance(cut, StackCut):
                yield replace(part_of(weight, replace(cut, experts=1)), name=f"{cut.name}[{expert[2]}]")
            else:
                yield part_of(weight, cut) if cut else weight

    return keep
