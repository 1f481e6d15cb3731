"""Youtu-LLM: DeepSeek V3's attention, one MLP in each layer."""

from dataclasses import replace

from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import DEEPSEEK3
from polyfleet.models.fields import Fields

USUAL = {"tie_word_embeddings": True, "q_lora_rank": 1536, "rope_theta": 10000.0}
NO_EXPERTS = {"n_routed_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 1, "n_shared_experts": 0}


def _read_folder(fields: Fields) -> ModelConfig:
    if fields.has("n_routed_experts"):
        raise fields.error("experts are not supported by this architecture: each layer has one MLP")
    fields.read.add("embedding_initializer_range")
    dense = {"first_k_dense_replace": fields.count("num_hidden_layers")}
    unscaled = {} if fields.has("rope_parameters") else USUAL
    stated = {"tie_word_embeddings": True, **unscaled, **NO_EXPERTS, **dense, **fields.values}
    return DEEPSEEK3.read_folder(replace(fields, values=stated))


YOUTU = replace(
    DEEPSEEK3,
    name="youtu",
    title="Youtu-LLM",
    classes=("YoutuForCausalLM",),
    model_types=("youtu",),
    gguf=(),
    read_folder=_read_folder,
    sparse=False,
    notes="",
)
