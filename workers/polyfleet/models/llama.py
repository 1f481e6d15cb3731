"""The Llama architecture: grouped-query attention with rotary positions, gated MLP, RMS norms before each."""

from polyfleet.kernels.graph import GraphBuilder, GraphParams, KernelGraph
from polyfleet.kernels.weights import Weights
from polyfleet.models.config import ModelConfig


def record(config: ModelConfig, weights: Weights) -> KernelGraph:
    """The forward pass as a KernelGraph. `weights` are named and shaped as `weight_shapes` says."""
    params = GraphParams(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        norm_eps=config.norm_eps,
        inverse_frequencies=config.inverse_frequencies,
        attention_scale=config.head_dim**-0.5,
    )
    rows = {name: weight.rows for name, weight in weights.items()}
    columns = {name: weight.columns for name, weight in weights.items()}
    graph = GraphBuilder(params, rows, columns)

    def linear(x: int, layer: int, *names: str) -> int:
        matrices = tuple(f"layers.{layer}.{name}" for name in names)
        biases = tuple(f"{matrix}.bias" for matrix in matrices if f"{matrix}.bias" in weights)
        return graph.linear(x, *matrices, biases=biases)

    residual = graph.embedding("embedding")
    normed = graph.rms_norm(residual, "layers.0.attention_norm")
    for layer in range(config.num_layers):
        query = graph.rope_cache(linear(normed, layer, "q", "k", "v"), layer)
        attended = linear(graph.paged_attention(query, layer), layer, "o")
        normed, residual = graph.add_rms_norm(attended, residual, f"layers.{layer}.mlp_norm")
        gated = graph.silu_mul(linear(normed, layer, "gate", "up"))
        last = layer == config.num_layers - 1
        norm = "norm" if last else f"layers.{layer + 1}.attention_norm"
        normed, residual = graph.add_rms_norm(linear(gated, layer, "down"), residual, norm)
    logits = graph.linear(graph.select_rows(normed), "embedding" if config.tied_embeddings else "lm_head")
    return graph.finish(hidden=normed, logits=logits)


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
