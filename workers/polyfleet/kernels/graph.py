"""KernelGraph: a model recorded as a flat program over the op vocabulary, and the builder that records it.

Every value is a matrix. Its rows are the step's tokens (T), or, after `select_rows`, the rows whose logits are wanted
(S); its columns are fixed by the model. Executors run the program; they may fuse, but must keep each op's meaning:

    embedding(ids)                 -> x[T, H]          row lookup in weights[0]
    rms_norm(x)                    -> y                x / sqrt(mean(x²) + eps) * weights[0]
    add_rms_norm(x, residual)      -> y, residual'     residual' = x + residual; y = rms_norm(residual')
    linear(x)                      -> y[., Σ rows]     x @ Wᵀ for each weight, results side by side (+ biases)
    rope_cache(qkv)                -> q[T, N·D]        rotates q and k (half-split), writes k and v to the KV cache
    paged_attention(q)             -> y[T, N·D]        causal attention over the sequence's blocks
    silu_mul(gate_up)              -> y[., F]          silu(left half) * right half
    select_rows(x)                 -> y[S, .]          the last row of each slice that samples
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique


@unique
class OpKind(str, Enum):
    """The op vocabulary; the meaning of each stands in this module's docstring."""

    EMBEDDING = "embedding"
    RMS_NORM = "rms_norm"
    ADD_RMS_NORM = "add_rms_norm"
    LINEAR = "linear"
    ROPE_CACHE = "rope_cache"
    PAGED_ATTENTION = "paged_attention"
    SILU_MUL = "silu_mul"
    SELECT_ROWS = "select_rows"


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction: reads values `inputs` and `weights`, writes values `outputs`."""

    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weights: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()
    layer: int = -1  # whose KV cache, for rope_cache and paged_attention


@dataclass(frozen=True, slots=True)
class GraphParams:
    """What ops need to know of the model beside their operands."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    inverse_frequencies: tuple[float, ...]  # of rope, head_dim / 2 values, any scaling already applied
    attention_scale: float


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """A whole forward pass. `widths[v]` is the number of columns of value v; value 0 is the token ids (width 1)."""

    ops: tuple[Op, ...]
    widths: tuple[int, ...]
    hidden: int  # value id of the final normalised hidden states [T, H], before select_rows
    logits: int  # value id of [S, vocabulary]
    params: GraphParams


@dataclass(slots=True)
class GraphBuilder:
    """Records ops in order; each method returns the id(s) of the value(s) it makes."""

    params: GraphParams
    row_counts: Mapping[str, int]  # rows (outputs) of each weight, to infer widths
    column_counts: Mapping[str, int]
    ops: list[Op] = field(default_factory=list)
    widths: list[int] = field(default_factory=lambda: [1])

    @property
    def token_ids(self) -> int:
        """The graph's only input."""
        return 0

    def embedding(self, weight: str) -> int:
        """Look the step's token ids up in `weight`."""
        return self._record(OpKind.EMBEDDING, (self.token_ids,), self.column_counts[weight], (weight,))

    def rms_norm(self, x: int, weight: str) -> int:
        """Normalise rows of x."""
        return self._record(OpKind.RMS_NORM, (x,), self.widths[x], (weight,))

    def add_rms_norm(self, x: int, residual: int, weight: str) -> tuple[int, int]:
        """Add, then normalise: (normalised, new residual)."""
        outputs = (self._value(self.widths[x]), self._value(self.widths[x]))
        self.ops.append(Op(OpKind.ADD_RMS_NORM, (x, residual), outputs, (weight,)))
        return outputs

    def linear(self, x: int, *weights: str, biases: tuple[str, ...] = ()) -> int:
        """Multiply by each weight, results side by side."""
        output = self._value(sum(self.row_counts[weight] for weight in weights))
        self.ops.append(Op(OpKind.LINEAR, (x,), (output,), weights, biases))
        return output

    def rope_cache(self, qkv: int, layer: int) -> int:
        """Rotate q and k, store k and v in the cache of `layer`, return q."""
        return self._record(OpKind.ROPE_CACHE, (qkv,), self.params.num_heads * self.params.head_dim, layer=layer)

    def paged_attention(self, q: int, layer: int) -> int:
        """Attend over the cache of `layer`."""
        return self._record(OpKind.PAGED_ATTENTION, (q,), self.widths[q], layer=layer)

    def silu_mul(self, gate_up: int) -> int:
        """The gate of a gated MLP."""
        return self._record(OpKind.SILU_MUL, (gate_up,), self.widths[gate_up] // 2)

    def select_rows(self, x: int) -> int:
        """Keep the rows whose logits are wanted."""
        return self._record(OpKind.SELECT_ROWS, (x,), self.widths[x])

    def finish(self, hidden: int, logits: int) -> KernelGraph:
        """Freeze the program."""
        return KernelGraph(tuple(self.ops), tuple(self.widths), hidden, logits, self.params)

    def _value(self, width: int) -> int:
        self.widths.append(width)
        return len(self.widths) - 1

    def _record(
        self, kind: OpKind, inputs: tuple[int, ...], width: int, weights: tuple[str, ...] = (), layer: int = -1
    ) -> int:
        output = self._value(width)
        self.ops.append(Op(kind, inputs, (output,), weights, layer=layer))
        return output
