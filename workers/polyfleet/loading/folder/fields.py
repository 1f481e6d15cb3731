"""Which fields of a config.json are understood: those that its architecture read. Another one that could change the
model's numbers is an error, unless its value says that nothing is changed; what only describes the model, its training
or how other software runs it is let through.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields

HARMLESS = re.compile(
    r"_.*"  # private to transformers
    r"|(?!.*per_token).*_token(_ids?|_index)?"  # bos_token_id, pad_token …: their texts come from the tokenizer
    r"|.*(_version|dropout|dropout_prob|pdrop)|(model|base_model|tokenizer|dataset|vocab|run)_(name|path|file|id|size).*"
    r"|model_(max_length|parallel)|(tokenizer|processor)_class"
    r"|(torch_|compute_|param_)?dtype|torchscript|use_bfloat16|tf_legacy_loss|auto_map|task_specific_params"
    r"|initializer_(range|factor)|init_(std|method|device).*|pretraining_tp|use_cache|is_decoder|is_llama_config"
    r"|router_(aux_loss_coef|jitter_noise)|aux_loss_alpha|seq_aux|input_jitter_noise|ep_size|initial_context_length"
    r"|gradient_checkpointing|use_recompute|recompute_granularity|neftune_noise_alpha|label_smoothing.*"
    r"|(use_)?(fused?|flash|sdpa|xformers)(_.*)?|attn_implementation|(tensor|virtual|pipeline|sequence)_.*parallel.*"
    r"|virtual_pp_degree|output_(past|hidden_states|attentions|scores|router_logits)|(use_)?return_dict.*|keys_to_ignore.*"
    r"|id2label|label2id|num_labels|predict_special_tokens|problem_type|prefix|finetuning_task|unsloth.*|transformers\..*|multiple_of"
    r"|ffn_dim_multiplier|mup_denominator|cache_implementation|(num|total)_params|parameter_count"
    r"|(max_|original_max_)?(seq_len|seq_length|sequence_length|length|position_embeddings|model_len)|max_window_layers"
    r"|name|license|author|description|tags|languages?|base_model|datasets?|revision|pipeline_tag|task|date"
    # what a generation_config.json states today
    r"|min_length|do_sample|early_stopping|num_beams|num_beam_groups|diversity_penalty|temperature|top_k|top_p|typical_p"
    r"|(repetition|length)_penalty|(encoder_)?no_repeat_ngram_size|num_return_sequences|remove_invalid_values"
    r"|max_new_tokens|(begin_)?suppress_tokens"
)
SCALE = re.compile(r".*(_scale|_scaling|_multiplier|_scaling_factor|_ratio)|scale_emb|rotary_pct|rope_pct")
EMPTY: tuple[Any, ...] = (False, 0, "", [], {})


def check_fields(fields: Fields, config: ModelConfig) -> None:
    """Raise ModelFileError for the first field that is not understood."""
    _check_window(fields, config)
    neutral = _neutral(config)
    for name, value in fields.values.items():
        if name in fields.read or name == "sliding_window" or HARMLESS.fullmatch(name):
            continue
        if not _changes_nothing(value, neutral.get(name, (False, 1) if SCALE.fullmatch(name) else EMPTY)):
            raise fields.error(
                f"{name} = {_shown(value)} is not supported: it may change what the model computes (if it does not, "
                "take it out of the file)"
            )


def _check_window(fields: Fields, config: ModelConfig) -> None:
    """A window of attention that nobody read must be switched off or as wide as the context."""
    if "sliding_window" not in fields.read and fields.has("sliding_window") and fields.flag("use_sliding_window", True):
        window = fields.count("sliding_window", minimum=0)
        if 0 < window < config.context_length:
            raise fields.error(f"sliding_window = {window} is not supported: attention sees all of the context")


def _neutral(config: ModelConfig) -> Mapping[str, Iterable[Any]]:
    """Values that change nothing, of fields whose neutral value is not just null, 0, false or empty."""
    scale = config.head_dim**-0.5
    return {
        "full_attn_mod": (1,),
        "interpolate_factor": (1,),
        "layer_types": (["full_attention"] * config.num_layers,),
        "use_sliding_window": (False, True),  # with a window as wide as the context
        "attention_multiplier": (scale,),
        "attention_scale": (scale,),
        "attn_scale": (scale,),
        "query_pre_attn_scalar": (config.head_dim,),
        "scale_depth": (math.sqrt(config.num_layers),),
        "dim_model_base": (config.hidden_size,),
        "rotary_dim": (config.head_dim,),
        "v_head_dim": (config.head_dim,),
        "is_causal": (True,),
        "directionality": () if config.causal else ("bidi",),
        "hidden_activation": ("silu", "swish"),
        "activation_function": ("silu", "swish"),
        "activation": ("silu", "swish", "swiglu"),
        "norm_eps": (config.norm_eps,),
        "rms_norm_eps": (config.norm_eps,),
        "layer_norm_eps": (config.norm_eps,),
        "layer_norm_epsilon": (config.norm_eps,),
        "position_embedding_type": ("rope", "rotary"),
    }


def _changes_nothing(value: Any, neutral: Iterable[Any]) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return any(type(value) is type(each) and value == each for each in neutral)
    numbers = (each for each in neutral if isinstance(each, (int, float)) and not isinstance(each, bool))
    return any(math.isclose(value, each) for each in numbers)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
