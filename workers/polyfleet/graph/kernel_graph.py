"""KernelGraph and its caches, and the builder that records it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyfleet.graph.ops import Attention, Attributes, CacheWrite, Norm, Op, OpKind, Rope


@dataclass(frozen=True, slots=True)
class PerToken:
    """A cache that stores keys and values for each token: `heads` of `width` columns each, twice."""

    heads: int
    width: int


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """A whole forward pass. `widths[v]` is the number of columns of value v; value 0 is the token ids (width 1)."""

    ops: tuple[Op, ...]
    widths: tuple[int, ...]
    caches: tuple[PerToken, ...]
    hidden: int  # value id of the final normalised hidden states [T, H], before select_rows
    logits: int  # value id of [S, vocabulary]


@dataclass(slots=True)
class GraphBuilder:
    """Records ops in order; each method returns the id of the value that it makes."""

    row_counts: Mapping[str, int]  # rows (outputs) of each weight, to infer widths
    column_counts: Mapping[str, int]
    ops: list[Op] = field(default_factory=list)
    widths: list[int] = field(default_factory=lambda: [1])
    caches: list[PerToken] = field(default_factory=list)

    @property
    def token_ids(self) -> int:
        """The graph's only input."""
        return 0

    def cache(self, heads: int, width: int) -> int:
        """Declare a cache; returns its index."""
        self.caches.append(PerToken(heads, width))
        return len(self.caches) - 1

    def embedding(self, weight: str) -> int:
        """Look the step's token ids up in `weight`."""
        return self.record(OpKind.EMBEDDING, (self.token_ids,), self.column_counts[weight], (weight,))

    def rms_norm(self, x: int, weight: str, eps: float) -> int:
        """Normalise rows of x."""
        return self.record(OpKind.RMS_NORM, (x,), self.widths[x], (weight,), Norm(eps))

    def linear(self, x: int, *weights: str, biases: tuple[str, ...] = ()) -> int:
        """Multiply by each weight, results side by side."""
        width = sum(self.row_counts[weight] for weight in weights)
        output = self.record(OpKind.LINEAR, (x,), width, weights, biases=biases)
        return output

    def add(self, x: int, y: int) -> int:
        """x + y."""
        return self.record(OpKind.ADD, (x, y), self.widths[x])

    def mul(self, x: int, y: int) -> int:
        """x * y, element by element."""
        return self.record(OpKind.MUL, (x, y), self.widths[x])

    def silu(self, x: int) -> int:
        """x * sigmoid(x)."""
        return self.record(OpKind.SILU, (x,), self.widths[x])

    def rope(self, x: int, rope: Rope) -> int:
        """Rotate the heads of x by position."""
        return self.record(OpKind.ROPE, (x,), self.widths[x], attributes=rope)

    def cache_write(self, k: int, v: int, cache: int) -> None:
        """Store the rows' keys and values."""
        self.ops.append(Op(OpKind.CACHE_WRITE, (k, v), attributes=CacheWrite(cache)))

    def paged_attention(self, q: int, cache: int, heads: int, scale: float) -> int:
        """Attend over a cache, whose rows must have been written before."""
        spec = self.caches[cache]
        attention = Attention(cache, heads, spec.heads, spec.width, scale)
        return self.record(OpKind.PAGED_ATTENTION, (q,), self.widths[q], attributes=attention)

    def select_rows(self, x: int) -> int:
        """Keep the rows whose logits are wanted."""
        return self.record(OpKind.SELECT_ROWS, (x,), self.widths[x])

    def finish(self, hidden: int, logits: int) -> KernelGraph:
        """Freeze the program."""
        return KernelGraph(tuple(self.ops), tuple(self.widths), tuple(self.caches), hidden, logits)

    def value(self, width: int) -> int:
        """A new value of so many columns."""
        self.widths.append(width)
        return len(self.widths) - 1

    def record(
        self,
        kind: OpKind,
        inputs: tuple[int, ...],
        width: int,
        weights: tuple[str, ...] = (),
        attributes: Attributes | None = None,
        biases: tuple[str, ...] = (),
    ) -> int:
        """Any op with one output."""
        output = self.value(width)
        self.ops.append(Op(kind, inputs, (output,), weights, biases, attributes))
        return output
