"""shard: what one rank of a group computes of a graph. Pure: a graph in, a rank's graph out.

Megatron's way (Shoeybi et al., arXiv 1909.08053), found by the flow of values rather than by names: a linear whose
output goes through nothing but ops on single columns or heads is cut by rows, and the linear that reads the result by
columns; its sums are partial, and an all_reduce follows; so with each of a layer's experts. The linear that makes the
logits is cut by rows where that leaves no rest, and an all_gather follows. All else every rank computes whole, states
and embeddings included: looking a row up is cheaper than a sum over ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph, PerToken
from polyfleet.graph.ops import Attention, CacheWrite, Experts, Heads, Norm, Op, OpKind, of

_COLUMNWISE = frozenset(
    {
        *(OpKind.ADD, OpKind.MUL, OpKind.SILU, OpKind.SIGMOID, OpKind.RELU, OpKind.GELU, OpKind.GELU_TANH),
        *(OpKind.SCALE, OpKind.SOFT_CAP, OpKind.SELECT_ROWS),
    }
)
_BEHIND_LOGITS = (OpKind.SCALE, OpKind.SOFT_CAP)  # may stand between the linear and the graph's output
_LATENT = (OpKind.HEAD_LINEAR, OpKind.LATENT_ATTENTION)
_WHOLE = (0, 0)


class NotSharded(ValueError):
    """A model can't be computed by so many ranks. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows and columns of a weight that a rank has, each as start and stop; a stop of 0: all."""

    source: str  # the weight's name in the model
    rows: tuple[int, int] = _WHOLE
    columns: tuple[int, int] = _WHOLE

    @property
    def name(self) -> str:
        """In the rank's graph."""
        ranges = (f"{start}:{stop}" if stop else ":" for start, stop in (self.rows, self.columns))
        return f"{self.source}[{', '.join(ranges)}]"


@dataclass(frozen=True, slots=True)
class StackCut:
    """A rank's share of the rows of each expert in a stack, or of their columns. A vector has columns for rows."""

    source: str
    experts: int
    rank: int
    size: int
    by_rows: bool
    zeros: bool = False  # whether it counts on another rank: all of it, but zeros

    @property
    def name(self) -> str:
        """In the rank's graph."""
        share = f"{self.rank}/{self.size}"
        return f"{self.source}[{'zeros' if self.zeros else share if self.by_rows else f':, {share}'}]"


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's graph, and by name what the weights are cut from that it does not read whole."""

    graph: KernelGraph
    cuts: Mapping[str, Cut | StackCut]
    copies: tuple[int, ...]  # of each cache how many neighbouring ranks have the same heads of it


def shard(graph: KernelGraph, rank: int, size: int) -> Shard:
    """What `rank` of `size` computes; the graph itself for a group of one.

    Raises NotSharded where heads or columns can't be shared evenly.
    """
    if size == 1:
        return Shard(graph, {}, (1,) * len(graph.caches))
    if graph.inputs:
        raise NotSharded("a model with inputs beside its tokens can't be computed by a group of ranks")
    return _Sharding(graph, rank, size).run()


class _Sharding:
    """One rank's work on one graph. `split[v]`: whether each rank has a part of the columns of value v."""

    def __init__(self, graph: KernelGraph, rank: int, size: int) -> None:
        self.graph, self.rank, self.size = graph, rank, size
        self.split = _split_values(graph)
        self.caches_of = {  # the cache of values whose heads are a cache's
            value: cache for cache, values in _written(graph, self.split).items() for value in values
        }
        self._check_heads()
        self.widths = [self.part(v)[1] - self.part(v)[0] if self.split[v] else w for v, w in enumerate(graph.widths)]
        self.cuts: dict[str, Cut | StackCut] = {}
        self.logits = self._logits_linear()

    def run(self) -> Shard:
        """The shard."""
        split = set(self.caches_of.values())
        ops = tuple(made for op in self.graph.ops for made in self._ops(op))
        caches, copies = [], []
        for at, cache in enumerate(self.graph.caches):
            caches.append(replace(cache, heads=self._kv_heads(cache)) if at in split else cache)
            copies.append(max(1, self.size // cache.heads) if at in split else self.size)
        graph = replace(self.graph, ops=ops, widths=tuple(self.widths), caches=tuple(caches))
        return Shard(graph, self.cuts, tuple(copies))

    def _check_heads(self) -> None:
        for op in self.graph.ops:
            if isinstance(op.attributes, Attention) and self.split[op.inputs[0]]:
                heads, cache = op.attributes.heads, self.graph.caches[op.attributes.cache]
                if heads % self.size:
                    raise NotSharded(f"the model's {heads} heads can't be shared evenly by {self.size} ranks")
                if not cache.latent:
                    self._kv_heads(cache)

    def part(self, value: int) -> tuple[int, int]:
        """The columns of a split value that this rank has."""
        width = self.graph.widths[value]
        if value in self.caches_of:
            cache = self.graph.caches[self.caches_of[value]]
            first = self.rank * cache.heads // self.size * cache.width
            return first, first + self._kv_heads(cache) * cache.width
        if width % self.size:
            raise NotSharded(f"{width} columns can't be shared evenly by {self.size} ranks")
        return self.rank * width // self.size, (self.rank + 1) * width // self.size

    def _kv_heads(self, cache: PerToken) -> int:
        """How many of them a rank has; where there are more ranks than heads, neighbours have the same one."""
        heads, size = cache.heads, self.size
        if heads % size and size % heads:
            raise NotSharded(f"the model's {heads} KV heads can't be shared evenly by {size} ranks")
        return max(1, heads // size)

    def _ops(self, op: Op) -> Iterator[Op]:
        if op.kind is OpKind.LINEAR:
            yield from self._linear(op)
        elif op.kind is OpKind.EXPERTS:
            yield from self._experts(op)
        elif op.kind is OpKind.PAGED_ATTENTION and self.split[op.inputs[0]]:
            attention = of(op, Attention)
            kv_heads = self._kv_heads(self.graph.caches[attention.cache])
            heads = attention.heads // self.size
            mine = self.rank * heads, (self.rank + 1) * heads
            sinks = tuple(self._cut(each, columns=mine) for each in op.weights)
            yield replace(op, weights=sinks, attributes=replace(attention, heads=heads, kv_heads=kv_heads))
        elif op.kind is OpKind.LATENT_ATTENTION and self.split[op.inputs[0]]:  # over a cache that all ranks have whole
            yield replace(op, attributes=replace(of(op, Attention), heads=of(op, Attention).heads // self.size))
        elif op.kind is OpKind.HEAD_LINEAR and self.split[op.inputs[0]]:
            yield replace(
                self._by_rows(op, self.part(op.outputs[0])), attributes=Heads(of(op, Heads).count // self.size)
            )
        else:
            yield op

    def _linear(self, op: Op) -> Iterator[Op]:
        """By columns behind a split value, by rows before one, else whole."""
        (output,) = op.outputs
        if self.split[op.inputs[0]]:
            weights = tuple(self._cut(each, columns=self.part(op.inputs[0])) for each in op.weights)
            partial = self._value(self.widths[output])
            biases = op.biases if self.rank == 0 else ()  # they count once
            yield replace(op, outputs=(partial,), weights=weights, biases=biases)
            yield Op(OpKind.ALL_REDUCE, (partial,), op.outputs)
        elif self.split[output]:
            yield self._by_rows(op, self.part(output))
        elif output == self.logits:
            rows = self.widths[output] // self.size
            start = self.rank * rows
            part = self._value(rows)
            yield replace(self._by_rows(op, (start, start + rows)), outputs=(part,))
            yield Op(OpKind.ALL_GATHER, (part,), op.outputs)
        else:
            yield op

    def _experts(self, op: Op) -> Iterator[Op]:
        """Each expert's gate and up by rows, its down by columns; biases of down count once."""
        count = of(op, Experts).count
        weights = tuple(self._share(each, count, by_rows=True) for each in op.weights[:-1])
        weights += (self._share(op.weights[-1], count, by_rows=False),)
        biases = tuple(self._share(each, count, by_rows=True) for each in op.biases[:-1])
        biases += tuple(
            each if self.rank == 0 else self._share(each, count, by_rows=True, zeros=True) for each in op.biases[-1:]
        )
        partial = self._value(self.widths[op.outputs[0]])
        yield replace(op, outputs=(partial,), weights=weights, biases=biases)
        yield Op(OpKind.ALL_REDUCE, (partial,), op.outputs)

    def _share(self, source: str, experts: int, *, by_rows: bool, zeros: bool = False) -> str:
        return self._add(StackCut(source, experts, self.rank, self.size, by_rows, zeros))

    def _by_rows(self, op: Op, rows: tuple[int, int]) -> Op:
        weights = tuple(self._cut(each, rows=rows) for each in op.weights)
        biases = tuple(self._cut(each, columns=rows) for each in op.biases)
        return replace(op, weights=weights, biases=biases)

    def _cut(self, source: str, rows: tuple[int, int] = _WHOLE, columns: tuple[int, int] = _WHOLE) -> str:
        return self._add(Cut(source, rows, columns))

    def _add(self, cut: Cut | StackCut) -> str:
        self.cuts[cut.name] = cut
        return cut.name

    def _value(self, width: int) -> int:
        self.widths.append(width)
        return len(self.widths) - 1

    def _logits_linear(self) -> int:
        """The linear's output that the logits are made of, where it can be shared evenly; else -1."""
        makers = {value: op for op in self.graph.ops for value in op.outputs}
        op = makers.get(self.graph.logits)
        while op is not None and op.kind in _BEHIND_LOGITS:
            op = makers.get(op.inputs[0])
        if op is None or op.kind is not OpKind.LINEAR or len(op.weights) != 1:
            return -1
        return -1 if self.graph.widths[op.outputs[0]] % self.size else op.outputs[0]


def _split_values(graph: KernelGraph) -> list[bool]:
    """Which values ranks have parts of: the most that ops allow."""
    made = {value for op in graph.ops for value in op.outputs}
    split = [value in made and value not in graph.outputs for value in range(len(graph.widths))]
    _settle(graph, split)
    for op in graph.ops:
        if op.kind is OpKind.LINEAR and split[op.inputs[0]] and split[op.outputs[0]]:
            split[op.outputs[0]] = False  # what follows a sum over ranks is whole
            _settle(graph, split)
    return split


def _settle(graph: KernelGraph, split: list[bool]) -> None:
    """Make values whole until those that must be alike are alike."""
    together = list(_bound_together(graph))
    changed = True
    while changed:
        changed = False
        for values, possible in together:
            if any(split[value] for value in values) and not (possible and all(split[value] for value in values)):
                changed = True
                for value in values:
                    split[value] = False


def _bound_together(graph: KernelGraph) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Values that are split all or none, and whether they may be."""
    caches: dict[int, tuple[int, ...]] = {}
    for op in graph.ops:
        values = (*op.inputs, *op.outputs)
        if op.kind is OpKind.LINEAR:
            if len(op.weights) > 1:
                yield op.outputs, False
        elif op.kind in (OpKind.CACHE_WRITE, OpKind.PAGED_ATTENTION):
            caches[op.cache or 0] = caches.get(op.cache or 0, ()) + values
        else:
            yield values, op.kind in _COLUMNWISE or op.kind in _LATENT or _of_heads(op)
    for values in caches.values():
        yield values, True


def _of_heads(op: Op) -> bool:
    """Whether it treats each head alone."""
    return op.kind is OpKind.ROPE or (op.kind is OpKind.RMS_NORM and of(op, Norm).width > 0)


def _written(graph: KernelGraph, split: list[bool]) -> dict[int, set[int]]:
    """Of each cache the split values that end up in it, from the linears on."""
    found: dict[int, set[int]] = {}
    for op in reversed(graph.ops):
        if op.kind is OpKind.CACHE_WRITE and split[op.inputs[0]]:
            found.setdefault(of(op, CacheWrite).cache, set()).update(op.inputs)
        elif op.kind in _COLUMNWISE or _of_heads(op):
            for values in found.values():
                if op.outputs[0] in values:
                    values.update(op.inputs)
    return found
