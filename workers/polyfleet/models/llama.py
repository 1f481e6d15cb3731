"""The Llama architecture: grouped-query attention with rotary positions, gated MLP, RMS norms before each."""

from polyfleet.graph.kernel_graph import GraphBuilder, KernelGraph
from polyfleet.graph.ops import Rope
from polyfleet.kernels.weights import Weights
from polyfleet.models.config import ModelConfig


def record(config: ModelConfig, weights: Weights) -> KernelGraph:
    """The forward pass as a KernelGraph. `weights` are named and shaped as `weight_shapes` says."""
    rows = {name: weight.rows for name, weight in weights.items()}
    columns = {name: weight.columns for name, weight in weights.items()}
    graph, rope = GraphBuilder(rows, columns), Rope(config.head_dim, config.inverse_frequencies)
    residual = graph.embedding("embedding")
    for layer in range(config.num_layers):
        names = f"layers.{layer}."

        def linear(x: int, name: str, names: str = names) -> int:
            bias = f"{names}{name}.bias"
            return graph.linear(x, names + name, biases=(bias,) if bias in weights else ())

        normed = graph.rms_norm(residual, f"{names}attention_norm", config.norm_eps)
        query, key = graph.rope(linear(normed, "q"), rope), graph.rope(linear(normed, "k"), rope)
        cache = graph.cache(config.num_kv_heads, config.head_dim)
        graph.cache_write(key, linear(normed, "v"), cache)
        attended = graph.paged_attention(query, cache, config.num_heads, scale=config.head_dim**-0.5)
        residual = graph.add(linear(attended, "o"), residual)
        normed = graph.rms_norm(residual, f"{names}mlp_norm", config.norm_eps)
        gated = graph.mul(graph.silu(linear(normed, "gate")), linear(normed, "up"))
        residual = graph.add(linear(gated, "down"), residual)
    hidden = graph.rms_norm(residual, "norm", config.norm_eps)
    logits = graph.linear(graph.select_rows(hidden), "embedding" if config.tied_embeddings else "lm_head")
    return graph.finish(hidden=hidden, logits=logits)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Every weight of the model by its graph name, with its (rows, columns); vectors have one row."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {"embedding": (config.vocabulary_size, hidden), "norm": (1, hidden)}
    if not config.tied_embeddings:
        shapes["lm_head"] = (config.vocabulary_size, hidden)
    attention = {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden), "o": (hidden, query)}
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    biased = (attention if config.attention_bias else {}) | (mlp if config.mlp_bias else {})
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        shapes[f"{prefix}attention_norm"] = shapes[f"{prefix}mlp_norm"] = (1, hidden)
        shapes.update({prefix + name: shape for name, shape in (attention | mlp).items()})
        shapes.update({f"{prefix}{name}.bias": (1, shape[0]) for name, shape in biased.items()})
    return shapes
