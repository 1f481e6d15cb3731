"""The GGUF file of a tiny checkpoint, as llama.cpp's converter would write it, named by the package `gguf`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from tests.support.tiny_kinds import CONTEXT, LAYERS, VOCABULARY, Tiny
from tests.support.tiny_models import interleave

EPS = ("rms_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_eps", "layer_norm_epsilon")  # how configurations call it
RENAMED = {  # names of some models' modules, and those that the package knows
    "block_sparse_moe.router": "mlp.gate",
    "block_sparse_moe.experts": "mlp.experts",
    "shared_mlp.input_linear.weight": "mlp.shared_experts.gate_up_proj",
    "shared_mlp.output_linear": "mlp.shared_experts.down_proj",
    "mlp.gate.moe_statics": "mlp.moe_statics",
    "correction_bias": "correction.bias",
    "mlp.expert_bias": "mlp.expert_bias.bias",
    "feed_forward.expert_bias": "feed_forward.expert_bias.bias",
    "feed_forward.experts": "mlp.experts",
    ".dt_bias": ".dt_proj.bias",
}


def write_gguf(tiny: Tiny, model: Any, path: Path) -> None:
    """The model as llama.cpp's converter would write it, in float32."""
    config, prefix = model.config, tiny.gguf
    kinds = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[prefix], LAYERS)
    writer = gguf.GGUFWriter(path, prefix)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bases = getattr(config, "rope_parameters", {"rope_theta": 1e4})
    eps = next((getattr(config, name) for name in EPS if hasattr(config, name)), 1e-5)
    keys: dict[str, Any] = {
        "context_length": CONTEXT,
        "embedding_length": config.hidden_size,
        "block_count": LAYERS,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        f"attention.layer_norm_{'rms_' if hasattr(config, 'rms_norm_eps') else ''}epsilon": float(eps),
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(bases.get("full_attention", bases)["rope_theta"]),
        "vocab_size": VOCABULARY,
    }
    window = getattr(config, "sliding_window", None)
    for key, value in (keys | ({"attention.sliding_window": window} if window else {}) | dict(tiny.keys)).items():
        _write(writer, f"{prefix}.{key}", value)
    for name, tensor in _apart(model.state_dict(), tiny.kind):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, kind = name.rpartition(".")
        data = tensor.contiguous().numpy()
        if any(stem.endswith(each) for each in tiny.interleaved):
            data = interleave(data, len(data) // head_dim)
        if name.endswith("norm.weight"):
            data = data + tiny.norm_offset
        writer.add_tensor(f"{names.get_name(stem)}.{kind}".rstrip("."), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _apart(tensors: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Any]]:
    """Tensors under the names of converters: stacks of gates and ups apart."""
    for own, tensor in tensors.items():
        name = own
        if kind == "nemotron_h":
            stacked = "mixer.experts" in own
            name = own.replace("mixer", "mlp") if stacked else own.replace("model.", "backbone.")
        for module, known in RENAMED.items():
            name = name.replace(module, known)
        if ".experts." in name and kind == "gpt_oss":
            stem, bias = name.removesuffix("_bias"), name.endswith("_bias")
            parts = ("gate", "up") if "gate_up" in name else ("down",)
            for number, part in enumerate(parts):
                each = tensor[..., number :: len(parts)]
                yield stem.replace("gate_up", part) + (".bias" if bias else ".weight"), each if bias else each.mT
        elif "experts.gate_up" in name and kind == "llama4_text":
            for part, each in zip(("gate", "up"), tensor.chunk(2, dim=-1), strict=True):
                yield name.replace("gate_up", part) + ".weight", each.mT
        elif ".experts.down" in name and kind == "llama4_text":
            yield name + ".weight", tensor.mT
        elif kind == "gpt2" and ".c_" in name and tensor.dim() == 2:
            yield name, tensor.T
        elif "query_key_value" in name:  # of 4 heads of queries, and as many of keys as there is room for
            groups = tensor.unflatten(0, ((len(tensor) // 16 - 4) // 2, -1, 16))
            sides = groups[:, :-2], groups[:, -2:-1], groups[:, -1:]
            yield name, torch.cat([each.flatten(0, 2) for each in sides])
        elif name.endswith(".A_log"):
            yield f"{name}.", -tensor.exp().unsqueeze(1)
        elif name.endswith(".D"):
            yield f"{name}.", tensor.unsqueeze(1)
        elif name.endswith("conv1d.weight"):
            yield name, tensor.squeeze(1)
        elif name.endswith(".sinks"):
            yield f"{name}.weight", tensor
        elif name.endswith("experts.gate_up_proj"):
            for part, each in zip(("gate", "up"), tensor.chunk(2, dim=-2), strict=True):
                yield name.replace("gate_up", part) + ".weight", each
        else:
            yield name + ".weight" * name.endswith("_proj"), tensor


def _write(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
