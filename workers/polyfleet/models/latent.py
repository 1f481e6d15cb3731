"""Latent attention as models share it: its facts and its recording."""

from dataclasses import dataclass

from polyfleet.models.mixture import MixtureConfig
from polyfleet.models.recorder import Recorder

NORM_EPS = 1e-6  # of the norms of what is compressed, whatever the file states of others


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig(MixtureConfig):
    """`head_dim` is what turns of a head; `plain_width` more columns of queries and keys don't."""

    latent_width: int
    query_rank: int  # queries are compressed to; 0: they are not
    plain_width: int
    value_width: int
    attention_scale: float


def attention(config: LatentConfig, model: Recorder, x: int) -> int:
    """Queries are taken to where keys are cached, and values from there, by a matrix for each head."""
    graph, heads, latent, bias = model.graph, config.num_heads, config.latent_width, config.attention_bias
    rope, entering = model.rope(), x
    if config.query_rank:
        entering = model.norm(model.linear(x, "q_a", config.query_rank, bias=bias), "q_a_norm", eps=NORM_EPS)
    plain = model.linear(entering, "q_nope", heads * config.plain_width)
    turning = graph.rope(model.linear(entering, "q_rope", heads * config.head_dim), rope)
    compressed = model.norm(model.linear(x, "kv_a", latent, bias=bias), "kv_a_norm", eps=NORM_EPS)
    key = graph.rope(model.linear(x, "k_rope", config.head_dim, bias=bias), rope)
    cache = graph.cache(1, latent + config.head_dim, latent=True)
    graph.latent_write(compressed, key, cache)
    query = model.head_linear(plain, "k_up", heads, latent)
    attended = graph.latent_attention(query, turning, cache, heads, config.attention_scale, latent)
    values = model.head_linear(attended, "v_up", heads, config.value_width)
    return model.linear(values, "o", config.hidden_size, bias=bias)
