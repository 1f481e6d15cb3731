"""Recorder: the parts that decoders are recorded of. It notes the name and shape of each weight as it is first read."""

from collections.abc import Callable, Iterator

from polyfleet.graph.kernel_graph import GraphBuilder, KernelGraph
from polyfleet.graph.ops import DeltaRule, Experts, Lookup, OpKind, Rope, Route, StateSpace
from polyfleet.models.config import ModelConfig

Shapes = dict[str, tuple[int, int]]
ONES = "ones."  # how the names of vectors begin that no file has


class Recorder:
    """Records one model. Within `layers`, names of weights are those of the layer at hand."""

    def __init__(self, config: ModelConfig) -> None:
        self.shapes: Shapes = {}  # (rows, columns) by name; vectors have one row
        self._config = config
        self._rows: dict[str, int] = {}
        self._columns: dict[str, int] = {}
        self._prefix = ""
        self.graph = GraphBuilder(self._rows, self._columns)

    def layers(self) -> Iterator[int]:
        """Each layer's number."""
        for layer in range(self._config.num_layers):
            self._prefix = f"layers.{layer}."
            yield layer
        self._prefix = ""

    def rope(self, frequencies: tuple[float, ...] | None = None) -> Rope:
        """The configuration's, or one of other frequencies without amplitude; pairs that have none don't turn."""
        amplitude = self._config.rope_amplitude if frequencies is None else 1.0
        turning = self._config.inverse_frequencies if frequencies is None else frequencies
        still = self._config.head_dim // 2 - len(turning)
        return Rope(self._config.head_dim, turning + (0.0,) * still, amplitude)

    def embedding(self, scale: float = 1.0) -> int:
        """The step's tokens."""
        rows = self._config.vocabulary_size * self._config.segments
        name = self._weight("embedding", rows, self._config.hidden_size)
        return self.graph.scale(self.graph.embedding(name), scale)

    def lookup(self, name: str, rows: int, lookup: Lookup) -> int:
        """Rows of a table of so many, by position or one for all."""
        return self.graph.lookup(self._weight(name, rows, self._config.hidden_size), lookup)

    def layer_norm(self, x: int, name: str) -> int:
        """Norm of rows around their mean, with a bias where the configuration says so."""
        weights, width = self._config.norm_weights, self.graph.widths[x]
        weight = self._weight(name, 1, width) if weights else self._ones(width)
        bias = self._weight(f"{name}.bias", 1, self.graph.widths[x]) if self._config.norm_biases else ""
        return self.graph.layer_norm(x, weight, bias, self._config.norm_eps)

    def norm(self, x: int, name: str, width: int = 0, *, eps: float = 0.0, narrow: bool = False) -> int:
        """The model's norm, of rows; an RMS norm of each `width` columns; with the configuration's eps or another."""
        if self._config.layer_norms and not width:
            return self.layer_norm(x, name)
        if not self._config.norm_weights:
            return self.unit_norm(x, width)
        weight, wide = self._weight(name, 1, width or self.graph.widths[x]), self._config.wide_norms and not narrow
        return self.graph.rms_norm(x, weight, eps or self._config.norm_eps, width, wide=wide)

    def unit_norm(self, x: int, width: int = 0) -> int:
        """RMS norm of rows, or of each `width` columns, without weights: by ones, which loading makes."""
        return self.graph.rms_norm(x, self._ones(width or self.graph.widths[x]), self._config.norm_eps, width)

    def group_norm(self, x: int, name: str, groups: int) -> int:
        """RMS norm of each of so many groups of columns, which have a part of the weight each."""
        weight, width = self._weight(name, 1, self.graph.widths[x]), self.graph.widths[x] // groups
        return self.graph.rms_norm(x, weight, self._config.norm_eps, width if groups > 1 else 0)

    def linear(self, x: int, name: str, rows: int, *, bias: bool = False) -> int:
        """Multiply by a matrix of so many rows."""
        weight = self._weight(name, rows, self.graph.widths[x])
        return self.graph.linear(x, weight, biases=(self._weight(f"{name}.bias", 1, rows),) if bias else ())

    def linears(self, x: int, names: tuple[str, ...], rows: int) -> int:
        """Multiply by several matrices of so many rows each, results side by side."""
        return self.graph.linear(x, *(self._weight(name, rows, self.graph.widths[x]) for name in names))

    def causal_conv(self, x: int, name: str, taps: int, *, bias: bool = False) -> int:
        """Each column over the last `taps` rows."""
        width = self.graph.widths[x]
        biases = (self._weight(f"{name}.bias", 1, width),) if bias else ()
        return self.graph.causal_conv(x, self._weight(name, 1, taps * width), taps, biases)

    def delta_rule(self, qkv: int, gates: int, names: tuple[str, str], rule: DeltaRule) -> int:
        """The gated delta rule, by two numbers of each head."""
        decay, shift = (self._weight(name, 1, rule.value_heads) for name in names)
        return self.graph.delta_rule(qkv, gates, (decay, shift), rule)

    def ssm_scan(self, xbc: int, steps: int, names: tuple[str, str, str], space: StateSpace) -> int:
        """Mamba 2's recurrence, by three numbers of each head."""
        decay, shift, skip = (self._weight(name, 1, space.value_heads) for name in names)
        return self.graph.ssm_scan(xbc, steps, (decay, shift, skip), space)

    def head_linear(self, x: int, name: str, heads: int, width: int) -> int:
        """Each head's columns of x by a matrix of its own, to `width` columns."""
        return self.graph.head_linear(x, self._weight(name, heads * width, self.graph.widths[x] // heads), heads)

    def attention(
        self,
        x: int,
        rope: Rope,
        *,
        bias: bool = False,
        output_bias: bool = False,
        head_norms: bool = False,
        window: int = 0,
        scale: float = 0.0,
        soft_cap: float = 0.0,
        sinks: bool = False,
        gated: bool = False,
        cache: int | None = None,
        prepare: Callable[[int, str], int] | None = None,
    ) -> int:
        """Grouped-query attention over a cache of its own, or one that layers share which need it no longer than they
        run. `scale` 0: that of a head's width. `prepare` makes of "q" and "k" what meets; else heads turn."""
        config, width = self._config, self._config.head_dim

        turned = prepare or (
            lambda each, name: self.graph.rope(self.norm(each, f"{name}_norm", width) if head_norms else each, rope)
        )
        counts = ("q", config.num_heads), ("k", config.num_kv_heads)
        query, key = (turned(self.linear(x, name, count * width, bias=bias), name) for name, count in counts)
        value = self.linear(x, "v", config.num_kv_heads * width, bias=bias)
        cache = self.graph.cache(config.num_kv_heads, width) if cache is None else cache
        self.graph.cache_write(key, value, cache)
        sunk = self._weight("sinks", 1, config.num_heads) if sinks else ""
        attended = self.graph.paged_attention(
            *(query, cache, config.num_heads, scale or width**-0.5),
            window=window,
            soft_cap=soft_cap,
            sinks=sunk,
            causal=config.causal,
        )
        if gated:
            gate = self.linear(x, "attention_gate", config.num_heads * width, bias=bias)
            attended = self.graph.mul(attended, self.graph.unary(OpKind.SIGMOID, gate))
        return self.linear(attended, "o", config.hidden_size, bias=output_bias)

    def gated_mlp(
        self, x: int, activation: OpKind = OpKind.SILU, *, bias: bool = False, names: str = "", size: int = 0
    ) -> int:
        """down(activation(gate(x)) * up(x)) of the configuration's size or another; `names` stands before theirs."""
        inner = size or self._config.intermediate_size
        gate = self.graph.unary(activation, self.linear(x, f"{names}gate", inner, bias=bias))
        gated = self.graph.mul(gate, self.linear(x, f"{names}up", inner, bias=bias))
        return self.linear(gated, f"{names}down", self._config.hidden_size, bias=bias)

    def plain_mlp(
        self, x: int, activate: Callable[[int], int], *, bias: bool = False, names: str = "", size: int = 0
    ) -> int:
        """down(activate(up(x))), of the configuration's size or another; `names` stands before theirs."""
        inner = activate(self.linear(x, f"{names}up", size or self._config.intermediate_size, bias=bias))
        return self.linear(inner, f"{names}down", self._config.hidden_size, bias=bias)

    def experts(
        self,
        x: int,
        shares: int,
        count: int,
        size: int,
        top_k: int,
        *,
        names: str = "experts.",
        limit: float = 0.0,
        gated: bool = True,
        early: bool = False,
    ) -> int:
        """So many MLPs of `size`, weighed by `shares`. With a limit they have biases; without gates, squares."""
        hidden, enter = self.graph.widths[x], ("gate", "up") if gated else ("up",)
        weights = tuple(self._weight(f"{names}{part}", count * size, hidden) for part in enter)
        weights += (self._weight(f"{names}down", count * hidden, size),)
        sizes = {**dict.fromkeys(enter, size), "down": hidden} if limit else {}
        biases = tuple(self._weight(f"{names}{part}.bias", 1, count * each) for part, each in sizes.items())
        return self.graph.experts(x, shares, weights, Experts(count, top_k, limit, early), biases)

    def router(self, x: int, route: Route, *, correction: bool = False, bias: bool = False) -> int:
        """Each expert's share in a row."""
        name = self._weight("correction.bias", 1, route.experts) if correction else ""
        return self.graph.route(self.linear(x, "router", route.experts, bias=bias), route, name)

    def pre_norm_decoder(
        self, attend: Callable[[int, int], int], mlp: Callable[[int, int], int] | None = None, *, scale: float = 1.0
    ) -> KernelGraph:
        """The usual decoder: norms before attention and MLP. `attend(layer, x)` records a layer's attention, and `mlp`
        its MLP where it is not the one of all layers; `scale` is of the embedding."""
        x, bias = self.embedding(scale), self._config.mlp_bias
        for layer in self.layers():
            x = self.graph.add(attend(layer, self.norm(x, "attention_norm")), x)
            normed = self.norm(x, "mlp_norm")
            x = self.graph.add(mlp(layer, normed) if mlp else self.gated_mlp(normed, bias=bias), x)
        return self.finish(x)

    def post_norm_decoder(
        self, attend: Callable[[int, int], int], mlp: Callable[[int, int], int] | None = None
    ) -> KernelGraph:
        """A decoder with norms behind attention and MLP alone; `attend` and `mlp` as of `pre_norm_decoder`."""
        x = self.embedding()
        for layer in self.layers():
            x = self.graph.add(self.norm(attend(layer, x), "attention_post_norm"), x)
            inner = mlp(layer, x) if mlp else self.gated_mlp(x, bias=self._config.mlp_bias)
            x = self.graph.add(self.norm(inner, "mlp_post_norm"), x)
        return self.finish(x)

    def finish(self, x: int, *, scale: float = 1.0, soft_cap: float = 0.0, bias: bool = False) -> KernelGraph:
        """Final norm and logits; `scale` is of what enters the head, `soft_cap` of what leaves it, `bias` its own."""
        config, hidden = self._config, self.norm(x, "norm")
        if config.score_tokens:
            score = self.linear(self.graph.scale(hidden, scale), "score", 1)
            score = self.graph.unary(OpKind.SIGMOID, score) if config.bounded else score
            return self.graph.finish(score, self.graph.select_rows(score))
        if config.embeds_only:
            return self.graph.finish(hidden, self.graph.select_rows(hidden))
        selected = self.graph.scale(self.graph.select_rows(hidden), scale)
        head = "embedding" if config.tied_embeddings else "lm_head"
        weight = self._weight(head, config.vocabulary_size, config.hidden_size)
        biases = (self._weight(f"{head}.bias", 1, config.vocabulary_size),) if bias else ()
        logits = self.graph.linear(selected, weight, biases=biases)
        return self.graph.finish(hidden=hidden, logits=self.graph.soft_cap(logits, soft_cap))

    def _ones(self, width: int) -> str:
        name = f"{ONES}{width}"
        self.shapes[name] = self._rows[name], self._columns[name] = 1, width
        return name

    def _weight(self, name: str, rows: int, columns: int) -> str:
        name = self._prefix + name
        self.shapes[name] = rows, columns
        self._rows[name], self._columns[name] = rows, columns
        return name
