"""What tiny checkpoints are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAYERS, VOCABULARY, CONTEXT = 4, 160, 256
WINDOW = 12
LLAMA_LIKE = ("q_proj", "k_proj")
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
GGUF_MIXTURE = {"expert_count": 4, "expert_used_count": 2}
GRANITE = {
    **{"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.3, "logits_scaling": 2.0},
    "tie_word_embeddings": True,
}
GGUF_GRANITE = {"embedding_scale": 3.0, "attention.scale": 0.2, "residual_scale": 0.3, "logit_scale": 2.0}


@dataclass(frozen=True, slots=True)
class Tiny:
    """What transformers makes a checkpoint of, and how llama.cpp's converter would write it."""

    kind: str  # model_type
    config: Mapping[str, Any] = field(default_factory=dict)  # beside COMMON
    gguf: str = ""  # architecture; none: no GGUF file of this one
    keys: Mapping[str, Any] = field(default_factory=dict)  # beside those of all
    interleaved: tuple[str, ...] = ()  # linears whose rows the converter reorders
    norm_offset: float = 0.0  # what it adds to norms
    tolerance: float = 0.0  # of logprobs, where float32 itself is nearly as far from float64: states keep its errors
    rewrite: Callable[[Path], None] | None = None  # makes transformers' folder one of a model that it lacks
    seed: int = 0  # of experts one for which no router is so near a tie that the CPU library's cache decides
