"""The op vocabulary. Every value is a matrix whose rows are the step's tokens (T) or, behind `select_rows`, the rows
whose logits are wanted (S); its columns are fixed by the model.

What models record:

    embedding(ids)          -> x[T, H]         row lookup in weights[0]: by token id or, with a Lookup, by position; by
                                               id, a step may give rows of its own, as images have them
    rms_norm(x)             -> y               x / sqrt(mean(x²) + eps) * weights[0], of rows or heads
    linear(x)               -> y[., Σ rows]    x @ Wᵀ for each weight, results side by side (+ biases)
    add(x, y)               -> x + y
    mul(x, y)               -> x * y           element by element
    silu(x), sigmoid(x)     -> y               x * sigmoid(x), and 1 / (1 + exp(-x))
    relu(x), gelu(x)        -> y               max(x, 0), and x * Φ(x), where Φ(x) = (1 + erf(x / √2)) / 2
    gelu_tanh(x)            -> y               x / 2 * (1 + tanh(√(2 / π) * (x + 0.044715 x³)))
    scale(x)                -> x * factor
    soft_cap(x)             -> y               cap * tanh(x / cap)
    layer_norm(x)           -> y               (x - mean(x)) / sqrt(variance(x) + eps) * weights[0] (+ biases[0])
    argmax(x)               -> columns[., 1]   of the largest number, the first of equal ones or NaNs; no op reads them
    rope(x)                 -> y               rotates each head by its row's position
    cache_write(k, v)                          stores the rows' keys and values in a cache
    paged_attention(q)      -> y[T, N·D]       causal attention over a cache, the rows' own positions included; of a
                                               window only the last positions of these; products may be capped, and
                                               heads have sinks in weights[0]: a logit each that has no value. One
                                               that is not causal sees all of a sequence, which a step has whole
    head_linear(x)          -> y[T, N·B]       each head's columns of x by a matrix of its own, of the stack weights[0]
    latent_write(c, k)                         stores the rows' vectors c ‖ k in a latent cache, keys and values in one
    latent_attention(q, r)  -> y[T, N·C]       causal attention of the heads q ‖ r: keys are the vectors of a latent
                                               cache, values the first C columns of these
    route(logits)           -> shares[., E]    of each of E experts in a row: those of its top_k, 0 of all others;
                                               weights[0], if any, is added to the scores that choose
    experts(x, shares)      -> y               Σ shares[e] * (gated(x @ gate[e]ᵀ, x @ up[e]ᵀ) @ down[e]ᵀ) over experts
                                               whose share is not 0 (+ biases); weights are stacks of all experts', of
                                               which some have no gates
    causal_conv(x)          -> y               Σ weights[0][column, tap] * x of the row so many before: each column by
                                               itself, over its sequence, zeros before its start (+ biases[0])
    delta_rule(qkv, gates)  -> y[T, V·B]       the gated delta rule (arXiv 2412.06464): of each head of values a state
                                               S[A, B] that a row fades by f = exp(-exp(weights[0]) * softplus(fade +
                                               weights[1])), S' = f S + k (sigmoid(rate) * (v - f Sᵀ k))ᵀ, y = S'ᵀ q;
                                               q and k have length 1, q / √A then; gates are the heads' rates ‖ fades
    ssm_scan(xbc, steps)    -> y[T, H·P]       Mamba 2's recurrence (arXiv 2405.21060): of each head of x a state
                                               S[N, P] that a row fades by f = exp(-exp(weights[0]) * t), t = softplus(
                                               step + weights[1]), S' = f S + b (t x)ᵀ, y = S'ᵀ c + weights[2] * x
    select_rows(x)          -> y[S, .]         the last row of each slice that samples

What lowerings make of them where an executor has it:

    add_rms_norm(x, y)      -> z, x + y        z = rms_norm(x + y)
    rope_cache(qkv)         -> q[T, N·D]       rope of q and k, and cache_write of k and v, which lie side by side; with
                                               weights rms_norm of each head of q and of k before
    silu_mul(gate_up)       -> y[., F]         silu(left half) * right half
    adapt(x, y)             -> y + up @ down @ x   of each row its adapter's matrices for the weights that made y of x

What `shard` inserts where the ranks of a group have parts of a value:

    all_reduce(x)           -> y               the sum of all ranks' x, to the same bits on each
    all_gather(x)           -> y[., Σ columns] all ranks' x side by side

What they make of a step in which every sequence has one row, and draws (see `narrow`): an rms_norm's factor of a row is
a sum that its readers finish, so that no op is left of it. `squares` [., any] are parts of the sum of x².

    gain(x)                 -> g, squares      g = x * weights[0]
    linear_add(x, y)        -> z, g, squares   z = x @ Wᵀ + y, g = z * weights[-1], squares of z
    norm_linear(g, squares) -> y               g @ Wᵀ (+ biases) / sqrt(mean(x²) + eps)
    norm_silu_mul(g, ...)   -> y[., F]         silu_mul of the same
    rope_attention(qkv)     -> y[T, N·D]       rope_cache, then paged_attention over that cache
    shrink(x)               -> low             down @ x of each row's adapter; linear_add, norm_linear and norm_silu_mul
                                               take it behind their inputs, and x @ Wᵀ grows by up @ low there
"""

from dataclasses import dataclass
from enum import Enum, unique
from typing import TypeVar


@unique
class OpKind(str, Enum):
    """The meaning of each stands in this module's docstring."""

    EMBEDDING = "embedding"
    RMS_NORM = "rms_norm"
    LINEAR = "linear"
    ADD = "add"
    MUL = "mul"
    SILU = "silu"
    SIGMOID = "sigmoid"
    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SCALE = "scale"
    SOFT_CAP = "soft_cap"
    LAYER_NORM = "layer_norm"
    ARGMAX = "argmax"
    ROPE = "rope"
    CACHE_WRITE = "cache_write"
    PAGED_ATTENTION = "paged_attention"
    HEAD_LINEAR = "head_linear"
    LATENT_WRITE = "latent_write"
    LATENT_ATTENTION = "latent_attention"
    ROUTE = "route"
    EXPERTS = "experts"
    CAUSAL_CONV = "causal_conv"
    DELTA_RULE = "delta_rule"
    SSM_SCAN = "ssm_scan"
    SELECT_ROWS = "select_rows"
    ADD_RMS_NORM = "add_rms_norm"
    ROPE_CACHE = "rope_cache"
    SILU_MUL = "silu_mul"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    GAIN = "gain"
    LINEAR_ADD = "linear_add"
    NORM_LINEAR = "norm_linear"
    NORM_SILU_MUL = "norm_silu_mul"
    ROPE_ATTENTION = "rope_attention"
    ADAPT = "adapt"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True)
class Norm:
    """Of rms_norm, add_rms_norm, layer_norm, norm_linear and norm_silu_mul."""

    eps: float
    width: int = 0  # of rms_norm: columns that are normalised together, by one weight or their own; 0: a row's all
    wide: bool = False  # whether weights[0] stays float32, whatever the dtype, and products are rounded once


@dataclass(frozen=True, slots=True)
class Lookup:
    """Of embedding, where token ids don't tell the row: it is `first`, behind which positions count or nothing does."""

    first: int = 0
    positions: bool = True


@dataclass(frozen=True, slots=True)
class Factor:
    """Of scale and soft_cap."""

    factor: float  # of soft_cap: the cap


@dataclass(frozen=True, slots=True)
class Rope:
    """Of rope: pairs (i, i + width / 2) of each head turn by position * frequencies[i], any scaling applied already.

    A pair whose frequency is 0 does not turn. Those that do grow by `amplitude`.
    """

    width: int  # columns of a head
    frequencies: tuple[float, ...]  # width / 2 of them, radians a position
    amplitude: float = 1.0

    @property
    def amplitudes(self) -> tuple[float, ...]:
        """Of each pair."""
        return tuple(self.amplitude if frequency else 1.0 for frequency in self.frequencies)


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Of cache_write and latent_write."""

    cache: int  # index into KernelGraph.caches


@dataclass(frozen=True, slots=True)
class Attention:
    """Of paged_attention and latent_attention. `heads` queries share `kv_heads` keys and values, equally many each."""

    cache: int  # index into KernelGraph.caches
    heads: int
    kv_heads: int
    width: int  # columns of a head
    scale: float  # of the products of queries and keys
    window: int = 0  # positions that a row sees, its own included; 0: all
    soft_cap: float = 0.0  # products p count as soft_cap * tanh(p / soft_cap); 0: as they are
    value_width: int = 0  # of latent_attention: columns of a value
    sinks: bool = False  # whether heads have some
    causal: bool = True  # whether rows see no position behind their own


@dataclass(frozen=True, slots=True)
class Heads:
    """Of head_linear."""

    count: int


@dataclass(frozen=True, slots=True)
class RopeCache:
    """Of rope_cache: what its parts have."""

    cache: int
    heads: int
    kv_heads: int
    rope: Rope
    eps: float = 0.0  # of the norms of heads, where there are some
    wide: bool = False  # these are


@dataclass(frozen=True, slots=True)
class Route:
    """Of route. Scores are the softmax of a row's logits, or their sigmoids; the experts of the best groups are chosen
    from, where a group counts as much as its best `group_best` experts together.
    """

    experts: int
    top_k: int
    sigmoid: bool = False
    renormalise: bool = True  # whether a row's shares sum up to `scale`, else they are scores times `scale`
    scale: float = 1.0
    groups: int = 1  # of equally many neighbours
    top_groups: int = 1
    group_best: int = 1


@dataclass(frozen=True, slots=True)
class Experts:
    """Of experts: gated(g, u) = silu(g) * u or, with a limit, g' * sigmoid(1.702 g') * (u' + 1), where g' is at most
    the limit and u' within ±limit; without gates max(u, 0)².
    """

    count: int
    top_k: int  # shares of a row that are not 0, at most
    limit: float = 0.0
    early: bool = False  # whether shares count in what gates and ups come to; else in what downs do


@dataclass(frozen=True, slots=True)
class Convolution:
    """Of causal_conv."""

    state: int  # index into KernelGraph.states: the last taps - 1 rows
    taps: int  # rows that count, the last one itself included


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Of ssm_scan. xbc are heads of values x, heads of keys b and as many of queries c; neighbours share keys."""

    state: int  # index into KernelGraph.states
    key_heads: int
    value_heads: int
    key_width: int  # A or N
    value_width: int  # B or P

    @property
    def group(self) -> int:
        """Heads of values that share one of keys."""
        return self.value_heads // self.key_heads


@dataclass(frozen=True, slots=True)
class DeltaRule(StateSpace):
    """Of delta_rule. qkv are heads of queries, as many of keys, and heads of values."""

    turns: bool = False  # whether heads of values that share keys are so many apart; else neighbours


@dataclass(frozen=True, slots=True)
class RopeAttention:
    """Of rope_attention: both are of one cache."""

    rope: RopeCache
    attention: Attention

    @property
    def cache(self) -> int:
        """Index into KernelGraph.caches."""
        return self.attention.cache


AnyAttributes = TypeVar("AnyAttributes")
_Usual = Norm | Lookup | Factor | Rope | CacheWrite | Attention | RopeCache | RopeAttention
Attributes = _Usual | Route | Experts | Heads | Convolution | StateSpace


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction: reads values `inputs` and `weights`, writes values `outputs`."""

    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    weights: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()  # none, or one for each weight
    attributes: Attributes | None = None

    @property
    def cache(self) -> int | None:
        """The cache that it reads or writes."""
        return getattr(self.attributes, "cache", None)


def of(op: Op, kind: type[AnyAttributes]) -> AnyAttributes:
    """The op's attributes, which must be of this kind; raises TypeError."""
    if not isinstance(op.attributes, kind):
        raise TypeError(f"{op.kind.value} needs {kind.__name__}, not {op.attributes!r}")
    return op.attributes
