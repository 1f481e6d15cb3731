"""Tiny folders that transformers wrote, made into those of publishers whose names it does not write."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def as_internlm2(folder: Path) -> None:
    """A Llama's folder under InternLM 2's names, where a KV head's queries, its key and its value lie together."""
    tensors, file = load_file(folder / "model.safetensors"), folder / "model.safetensors"
    renamed = {
        **{"model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo"},
        **{"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"},
        **{"mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"},
    }
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        heads = [tensors.pop(f"{stem}self_attn.{each}_proj.weight").view(2, -1, 16, 64) for each in "qkv"]
        tensors[f"{stem}attention.wqkv.weight"] = torch.cat(heads, dim=1).reshape(-1, 64)
    for old, new in renamed.items():
        tensors = {name.replace(old, new): tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    own = {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": False}
    own |= {"auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"}}
    (folder / "config.json").write_text(json.dumps(config | own))


def as_published_exaone(folder: Path) -> None:
    """A configuration under the names that its publisher gives, where transformers writes Llama's."""
    path, own = folder / "config.json", {"architectures": ["ExaoneForCausalLM"]}
    config = json.loads(path.read_text())
    for old, new in {
        **{"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon"},
        "hidden_act": "activation_function",
    }.items():
        own[new] = config.pop(old)
    path.write_text(json.dumps(config | own))
