"""Folders of models that see images too: the part that reads and writes text, a model that is known by itself."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from polyfleet.models.architecture import TensorNames
from polyfleet.models.fields import Fields

log = logging.getLogger(__name__)

SEES = ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration")  # whose images are read, too
PARTS: Mapping[str, str] = {  # by the folder's class that of its text part
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Idefics3ForConditionalGeneration": "LlamaForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Kimi_K25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Lfm2VlForConditionalGeneration": "Lfm2ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "SmolVLMForConditionalGeneration": "LlamaForCausalLM",
}
UNSTATED: Mapping[str, Mapping[str, Any]] = {  # what files of these leave out
    "Gemma3ForCausalLM": {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4},
    "Qwen3MoeForCausalLM": {"norm_topk_prob": True},
}
TURNED = ("Qwen3VLMoeForConditionalGeneration",)  # whose stacks of experts lie columns first
OUTER = {
    "model.text_model.": "model.",
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.": "",
}
SEEING = r"(model\.)?(visual|vision_tower|vision_model|connector|(multi_modal|mm)_projector)\..*"  # tensors
SHARED = ("vocab_size", "eos_token_id", "quantization_config", "tie_word_embeddings")  # may stand outside
OUTSIDE = (
    *("vision_config", "text_config", "image_token_id", "video_token_id", "spatial_merge_size"),
    *("perceiver_config", "pixel_shuffle_factor", "use_resampler", "scale_factor"),  # of what joins both parts
)
ROPES = ("rope_scaling", "rope_parameters")


def text_part(fields: Fields) -> Fields:
    """What a config.json states of the text part; the same where the model has no other. Raises ModelFileError."""
    names = fields.items("architectures") if fields.has("architectures") else []
    known = next((PARTS[name] for name in names if isinstance(name, str) and name in PARTS), None)
    if known is None:
        return fields
    if not set(names) & set(SEES):
        log.warning("%s: only the part that reads text is loaded", fields.path)
    flat = fields.has("hidden_size") and not fields.has("text_config")  # as older folders are
    section = fields if flat else fields.section("text_config")
    values = {key: value for key, value in section.values.items() if key not in OUTSIDE}
    values |= {key: fields.values[key] for key in SHARED if fields.has(key)}
    values |= {key: _one_axis(values[key]) for key in ROPES if isinstance(values.get(key), dict)}
    return replace(section, values={**UNSTATED.get(known, {}), **values, "architectures": [known]}, read=set())


def text_names(names: TensorNames, whole: Fields) -> TensorNames:
    """Those of the whole folder."""
    turned = names.turned_stacks or bool(set(whole.items("architectures")) & set(TURNED))
    return replace(names, outer=OUTER, ignored=(*names.ignored, SEEING), turned_stacks=turned)


def _one_axis(rope: Mapping[str, Any]) -> dict[str, Any]:
    """A rope whose positions are the same on all axes, as those of texts are."""
    values = {key: value for key, value in rope.items() if key not in ("mrope_section", "mrope_interleaved")}
    return {key: "default" if value == "mrope" else value for key, value in values.items()}
