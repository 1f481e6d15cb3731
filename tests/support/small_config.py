"""The configuration of a small Llama, of which tests change what they are about."""

from polyfleet.models.config import ModelConfig

SMALL = ModelConfig(
    architecture="llama",
    name="tiny",
    vocabulary_size=96,
    hidden_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=80,
    norm_eps=1e-5,
    inverse_frequencies=(1.0,) * 8,
    context_length=64,
    tied_embeddings=False,
)
