"""Tensor names that most decoders share; architectures replace those that are theirs."""

from collections.abc import Collection, Mapping

from polyfleet.models.architecture import TensorNames

FOLDER: Mapping[str, str] = {"model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "lm_head"}
FOLDER_LAYER: Mapping[str, str] = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
EXPERTS: Mapping[str, str] = {  # one by one, and as transformers holds them
    "mlp.gate": "router",
    "mlp.experts.{}.gate_proj": "experts.gate[{}]",
    "mlp.experts.{}.up_proj": "experts.up[{}]",
    "mlp.experts.{}.down_proj": "experts.down[{}]",
    "mlp.experts.gate_up_proj": "experts.gate experts.up",
    "mlp.experts.gate_proj": "experts.gate",
    "mlp.experts.up_proj": "experts.up",
    "mlp.experts.down_proj": "experts.down",
}
GGUF: Mapping[str, str] = {"token_embd": "embedding", "output_norm": "norm", "output": "lm_head"}
GGUF_LAYER: Mapping[str, str] = {
    "attn_norm": "attention_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "q k v",
    "attn_output": "o",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
GGUF_EXPERTS: Mapping[str, str] = {
    "ffn_gate_inp": "router",
    "ffn_gate_exps": "experts.gate",
    "ffn_up_exps": "experts.up",
    "ffn_down_exps": "experts.down",
    "ffn_gate_up_exps": "experts.gate experts.up",
    "ffn_gate.{}": "experts.gate[{}]",  # of older files
    "ffn_up.{}": "experts.up[{}]",
    "ffn_down.{}": "experts.down[{}]",
}
POST_NORMS: Mapping[str, str] = {  # where norms stand behind the branches alone
    "post_attention_layernorm": "attention_post_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}
GGUF_POST_NORMS: Mapping[str, str] = {"post_attention_norm": "attention_post_norm", "post_ffw_norm": "mlp_post_norm"}
IMPLIED_BY_CONFIG = (r".*\.rotary_emb\.inv_freq",)  # older files store it
IMPLIED_BY_GGUF = (r"rope_(freqs|factors_long|factors_short)\.weight",)  # read with the metadata


def folder(
    layer: Mapping[str, str] | None = None,
    *,
    interleaved: bool = False,
    norm_offset: float = 0.0,
    turned_stacks: bool = False,
) -> TensorNames:
    """Of a Hugging Face folder."""
    names = {**FOLDER_LAYER, **(layer or {})}
    return TensorNames(
        FOLDER,
        "model.layers.",
        names,
        IMPLIED_BY_CONFIG,
        interleaved,
        norm_offset,
        optional="model.",
        turned_stacks=turned_stacks,
        taking_turns=turned_stacks,
    )


def gguf(
    layer: Mapping[str, str] | None = None, *, interleaved: bool = False, rates: Collection[str] = ()
) -> TensorNames:
    """Of a GGUF file."""
    return TensorNames(GGUF, "blk.", {**GGUF_LAYER, **(layer or {})}, IMPLIED_BY_GGUF, interleaved, rates=rates)
