"""Models in the shapes of known ones, with random weights that are made where they are used."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.model import LoadedModel
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import weight_shapes

BLOCK_SIZE = 64  # tokens, of a cache whose executor takes any
ROPE_BASE, CONTEXT, EPS, SCALE = 500000.0, 16384, 1e-5, 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a dense Llama."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    width: int  # of a head
    intermediate: int

    @property
    def config(self) -> ModelConfig:
        """As our loaders would read it."""
        half = self.width // 2
        frequencies = tuple(ROPE_BASE ** (-place / half) for place in range(half))
        heads = self.heads, self.kv_heads, self.width
        sizes = self.vocabulary, self.hidden, self.layers, *heads, self.intermediate
        return ModelConfig("llama", "random", *sizes, EPS, frequencies, CONTEXT, False)

    def write(self, folder: Path) -> Path:
        """A Hugging Face folder that has the configuration alone."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"},
            **{"vocab_size": self.vocabulary, "hidden_size": self.hidden, "num_hidden_layers": self.layers},
            **{"num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.width},
            **{"intermediate_size": self.intermediate, "max_position_embeddings": CONTEXT, "rms_norm_eps": EPS},
            **{"rope_theta": ROPE_BASE, "hidden_act": "silu", "tie_word_embeddings": False},
            **{"bos_token_id": 1, "eos_token_id": 2},
        }
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder


NAMES = {  # of a layer's weights in a Hugging Face folder
    **{name: f"self_attn.{name}_proj.weight" for name in "qkvo"},
    **{name: f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    **{"attention_norm": "input_layernorm.weight", "mlp_norm": "post_attention_layernorm.weight"},
    **{"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "lm_head": "lm_head.weight"},
}
SHAPES: Mapping[str, Shape] = {
    "llama3_8b": Shape(128256, 4096, 32, 32, 8, 128, 14336),
    "smollm2_135m": Shape(49152, 576, 30, 9, 3, 64, 1536),
    "tiny": Shape(512, 128, 2, 4, 2, 32, 256),
}


def random_model(shape: Shape, device: str, dtype: torch.dtype = torch.bfloat16) -> LoadedModel:
    """On the device already, the same for every run; matrices about 0, norms about 1."""
    generator = torch.Generator(device=device).manual_seed(0)
    weight_format = WeightFormat.BF16 if dtype is torch.bfloat16 else WeightFormat.F32
    weights = {}
    for name, (rows, columns) in weight_shapes(shape.config).items():
        data = torch.randn(rows, columns, generator=generator, device=device, dtype=dtype) * SCALE
        weights[name] = Weight(name, weight_format, rows, columns, data + 1 if rows == 1 else data)
    return LoadedModel("random", shape.config, weights, None)


def write_model(shape: Shape, folder: Path, device: str, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A Hugging Face folder with the same random weights, and a token for each number; the device is left free."""
    model = random_model(shape, device, dtype)
    tensors = {}
    for name, weight in model.weights.items():
        data = weight.data[0] if weight.rows == 1 else weight.data
        lead, _, last = name.rpartition(".")
        tensors[f"model.{lead}.{NAMES[last]}" if lead else NAMES[last]] = data.contiguous().cpu()
    del model, weight, data
    if torch.device(device).type != "cpu":
        torch.get_device_module(torch.device(device)).empty_cache()
    vocabulary = {f"<{number}>": number for number in range(shape.vocabulary)}
    Tokenizer(WordLevel(vocabulary, unk_token="<0>")).save(str(shape.write(folder) / "tokenizer.json"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
