"""The facts of a model that its file states, in one vocabulary for GGUF and Hugging Face folders."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder-only transformer. `inverse_frequencies` has any rope scaling applied already."""

    architecture: str  # llama
    name: str
    vocabulary_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    inverse_frequencies: tuple[float, ...]
    context_length: int
    tied_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    end_token_ids: tuple[int, ...] = ()
