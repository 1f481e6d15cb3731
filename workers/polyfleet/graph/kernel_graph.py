"""KernelGraph and its caches, and the builder that records it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfleet.graph.ops import (
    Attention,
    Attributes,
    CacheWrite,
    Convolution,
    DeltaRule,
    Experts,
    Factor,
    Heads,
    Lookup,
    Norm,
    Op,
    OpKind,
    Rope,
    Route,
    StateSpace,
)

STATE_BYTES = 4  # of a state's number


@dataclass(frozen=True, slots=True)
class PerToken:
    """A cache that stores keys and values for each token: `heads` of `width` columns each, twice.

    A latent one stores them once: values are columns of the keys.
    """

    heads: int
    width: int
    latent: bool = False

    @property
    def sides(self) -> int:
        """How many times it stores `heads` of `width` columns."""
        return 1 if self.latent else 2


@dataclass(frozen=True, slots=True)
class PerSlot:
    """A state that ops carry from row to row: `width` numbers in float32 for each sequence that runs.

    The first row of a sequence finds zeros, so a slot needs no clearing; a cached prefix has none.
    """

    width: int


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """A whole forward pass. `widths[v]` is the number of columns of value v; value 0 is the token ids (width 1).

    A model's outputs are the final normalised hidden states [T, H], before select_rows, and the logits [S, vocabulary].
    """

    ops: tuple[Op, ...]
    widths: tuple[int, ...]
    caches: tuple[PerToken, ...]
    outputs: tuple[int, ...]  # values that are there at the end
    inputs: tuple[int, ...] = ()  # values of numbers that a step brings beside its token ids
    states: tuple[PerSlot, ...] = ()

    @property
    def hidden(self) -> int:
        """The first output."""
        return self.outputs[0]

    @property
    def causal(self) -> bool:
        """Whether rows see no position behind their own, so that a sequence may come in parts and go on."""
        return all(op.attributes.causal for op in self.ops if isinstance(op.attributes, Attention))

    @property
    def local_caches(self) -> frozenset[int]:
        """Caches that are read through windows alone, where others are read whole; none where all are alike."""
        reads = [op.attributes for op in self.ops if isinstance(op.attributes, Attention)]
        whole = {each.cache for each in reads if not each.window}
        return frozenset(each.cache for each in reads) - whole if whole and self.causal else frozenset()

    @property
    def logits(self) -> int:
        """The last output."""
        return self.outputs[-1]

    @property
    def state_bytes(self) -> int:
        """Of all states of one slot."""
        return sum(STATE_BYTES * each.width for each in self.states)


@dataclass(slots=True)
class GraphBuilder:
    """Records ops in order; each method returns the id of the value that it makes."""

    row_counts: Mapping[str, int]  # rows (outputs) of each weight, to infer widths
    column_counts: Mapping[str, int]
    ops: list[Op] = field(default_factory=list)
    widths: list[int] = field(default_factory=lambda: [1])
    caches: list[PerToken] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    states: list[PerSlot] = field(default_factory=list)

    @property
    def token_ids(self) -> int:
        """The input that every graph has."""
        return 0

    def input(self, width: int) -> int:
        """Declare an input of numbers."""
        self.inputs.append(self.value(width))
        return self.inputs[-1]

    def cache(self, heads: int, width: int, *, latent: bool = False) -> int:
        """Declare a cache; returns its index."""
        self.caches.append(PerToken(heads, width, latent))
        return len(self.caches) - 1

    def state(self, width: int) -> int:
        """Declare a state; returns its index."""
        self.states.append(PerSlot(width))
        return len(self.states) - 1

    def embedding(self, weight: str) -> int:
        """Look the step's token ids up in `weight`."""
        return self.record(OpKind.EMBEDDING, (self.token_ids,), self.column_counts[weight], (weight,))

    def lookup(self, weight: str, lookup: Lookup) -> int:
        """Look rows of `weight` up by the step's positions, or one for all."""
        width = self.column_counts[weight]
        return self.record(OpKind.EMBEDDING, (self.token_ids,), width, (weight,), lookup)

    def rms_norm(self, x: int, weight: str, eps: float, width: int = 0, *, wide: bool = False) -> int:
        """Normalise rows of x, or each `width` columns of them."""
        return self.record(OpKind.RMS_NORM, (x,), self.widths[x], (weight,), Norm(eps, width, wide))

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
        return self.unary(OpKind.SILU, x)

    def unary(self, kind: OpKind, x: int) -> int:
        """silu, sigmoid, relu, gelu or gelu_tanh of each element."""
        return self.record(kind, (x,), self.widths[x])

    def scale(self, x: int, factor: float) -> int:
        """x * factor; x itself for 1."""
        return x if factor == 1 else self.record(OpKind.SCALE, (x,), self.widths[x], attributes=Factor(factor))

    def soft_cap(self, x: int, cap: float) -> int:
        """cap * tanh(x / cap); x itself for 0."""
        return self.record(OpKind.SOFT_CAP, (x,), self.widths[x], attributes=Factor(cap)) if cap else x

    def layer_norm(self, x: int, weight: str, bias: str, eps: float) -> int:
        """Normalise rows of x around their mean; without a bias where that is empty."""
        return self.record(OpKind.LAYER_NORM, (x,), self.widths[x], (weight,), Norm(eps), (bias,) if bias else ())

    def argmax(self, x: int) -> int:
        """The column of each row's largest number."""
        return self.record(OpKind.ARGMAX, (x,), 1)

    def rope(self, x: int, rope: Rope) -> int:
        """Rotate the heads of x by position."""
        return self.record(OpKind.ROPE, (x,), self.widths[x], attributes=rope)

    def cache_write(self, k: int, v: int, cache: int) -> None:
        """Store the rows' keys and values."""
        self.ops.append(Op(OpKind.CACHE_WRITE, (k, v), attributes=CacheWrite(cache)))

    def paged_attention(
        self,
        q: int,
        cache: int,
        heads: int,
        scale: float,
        *,
        window: int = 0,
        soft_cap: float = 0.0,
        sinks: str = "",
        causal: bool = True,
    ) -> int:
        """Attend over a cache, whose rows must have been written before; `sinks` is a weight."""
        spec, weights = self.caches[cache], (sinks,) if sinks else ()
        terms = {"sinks": bool(sinks), "causal": causal}
        attention = Attention(cache, heads, spec.heads, spec.width, scale, window, soft_cap, **terms)
        return self.record(OpKind.PAGED_ATTENTION, (q,), self.widths[q], weights, attention)

    def head_linear(self, x: int, weight: str, heads: int) -> int:
        """Each head's columns of x by its own part of a stack."""
        return self.record(OpKind.HEAD_LINEAR, (x,), self.row_counts[weight], (weight,), Heads(heads))

    def latent_write(self, latent: int, key: int, cache: int) -> None:
        """Store the rows' latents and what of their keys is none."""
        self.ops.append(Op(OpKind.LATENT_WRITE, (latent, key), attributes=CacheWrite(cache)))

    def latent_attention(self, query: int, rest: int, cache: int, heads: int, scale: float, width: int) -> int:
        """Attend over a latent cache, whose rows must have been written before; values have `width` columns."""
        attention = Attention(cache, heads, 1, self.caches[cache].width, scale, value_width=width)
        return self.record(OpKind.LATENT_ATTENTION, (query, rest), heads * width, attributes=attention)

    def route(self, logits: int, route: Route, correction: str = "") -> int:
        """Each expert's share in a row, of the logits of all; `correction` is a weight that helps to choose."""
        weights = (correction,) if correction else ()
        return self.record(OpKind.ROUTE, (logits,), self.widths[logits], weights, route)

    def experts(
        self, x: int, shares: int, weights: tuple[str, ...], experts: Experts, biases: tuple[str, ...] = ()
    ) -> int:
        """The experts' MLPs; `weights` (and `biases`) are stacks of their gates, if any, ups and downs."""
        return self.record(OpKind.EXPERTS, (x, shares), self.widths[x], weights, experts, biases)

    def causal_conv(self, x: int, weight: str, taps: int, biases: tuple[str, ...] = ()) -> int:
        """Each column over the last `taps` rows; `weight` has [column, tap] in one row."""
        state = self.state((taps - 1) * self.widths[x])
        return self.record(OpKind.CAUSAL_CONV, (x,), self.widths[x], (weight,), Convolution(state, taps), biases)

    def delta_rule(self, qkv: int, gates: int, weights: tuple[str, str], rule: DeltaRule) -> int:
        """The gated delta rule with a state of its own; `weights` are of each head."""
        width = rule.value_heads * rule.value_width
        rule = replace(rule, state=self.state(width * rule.key_width))
        return self.record(OpKind.DELTA_RULE, (qkv, gates), width, weights, rule)

    def ssm_scan(self, xbc: int, steps: int, weights: tuple[str, str, str], space: StateSpace) -> int:
        """Mamba 2's recurrence with a state of its own; `weights` are of each head."""
        width = space.value_heads * space.value_width
        space = replace(space, state=self.state(width * space.key_width))
        return self.record(OpKind.SSM_SCAN, (xbc, steps), width, weights, space)

    def select_rows(self, x: int) -> int:
        """Keep the rows whose logits are wanted."""
        return self.record(OpKind.SELECT_ROWS, (x,), self.widths[x])

    def finish(self, hidden: int, logits: int) -> KernelGraph:
        """Freeze a model's program."""
        return self.freeze((hidden, logits))

    def freeze(self, outputs: tuple[int, ...]) -> KernelGraph:
        """Freeze the program."""
        values, stores = (tuple(self.ops), tuple(self.widths)), (tuple(self.inputs), tuple(self.states))
        return KernelGraph(*values, tuple(self.caches), outputs, *stores)

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
