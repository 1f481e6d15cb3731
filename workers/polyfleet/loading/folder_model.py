"""From a Hugging Face folder (config.json and safetensors) to a LoadedModel. Nothing in the folder is executed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from polyfleet.kernels.quantisation import DENSE_DTYPES
from polyfleet.kernels.weights import Weight, WeightFormat
from polyfleet.loading.folder_config import read_config
from polyfleet.loading.folder_files import check_is_model, weight_files
from polyfleet.loading.folder_tokenizer import folder_tokenizer
from polyfleet.loading.model import LoadedModel, ModelFileError
from polyfleet.loading.progress import Progress
from polyfleet.loading.shapes import check_config, check_weights

GLOBAL_NAMES: Mapping[str, str] = {
    "model.embed_tokens.weight": "embedding",
    "model.norm.weight": "norm",
    "lm_head.weight": "lm_head",
}
LAYER_NAMES: Mapping[str, str] = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
LAYER_TENSOR = re.compile(r"model\.layers\.(\d+)\.([a-z_.]+)\.(weight|bias)")
IGNORED = re.compile(r".*\.rotary_emb\.inv_freq")  # older files store what config.json implies
FORMATS: Mapping[torch.dtype, WeightFormat] = {dtype: form for form, dtype in DENSE_DTYPES.items()}


def load_folder(path: str, progress: Progress) -> LoadedModel:
    """Load the folder; raises ModelFileError."""
    folder = Path(path)
    check_is_model(folder)
    config = read_config(folder)
    files = weight_files(folder)
    weights: dict[str, Weight] = {}
    for number, file in enumerate(files):
        for weight in _read_weights(file):
            if weight.name in weights:
                raise ModelFileError(f"{file}: tensor {weight.name!r} stands in two files")
            weights[weight.name] = weight
        progress((number + 1) / len(files))
    if config.tied_embeddings:
        weights.pop("lm_head", None)
    check_config(path, config, len(weights))
    check_weights(path, config, weights)
    tokenizer, end_token_ids = folder_tokenizer(folder, config)
    return LoadedModel(path, replace(config, end_token_ids=end_token_ids), weights, tokenizer)


def _read_weights(file: Path) -> Iterator[Weight]:
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (it is no mapping)
                if not IGNORED.fullmatch(name):
                    yield _weight(file, name, tensors.get_tensor(name))
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{file}: the file is truncated or corrupt ({error})") from None


def _weight(file: Path, name: str, data: torch.Tensor) -> Weight:
    if data.dtype not in FORMATS:
        known = ", ".join(form.value for form in FORMATS.values())
        kind = str(data.dtype).removeprefix("torch.")
        raise ModelFileError(f"{file}: tensor {name!r} has the unsupported type {kind} (supported: {known})")
    if data.dim() not in (1, 2):
        raise ModelFileError(f"{file}: tensor {name!r} has {data.dim()} dimensions, a matrix or a vector is needed")
    matrix = data if data.dim() == 2 else data[None]
    return Weight(_graph_name(name), FORMATS[data.dtype], matrix.shape[0], matrix.shape[1], matrix)


def _graph_name(name: str) -> str:
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    match = LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in LAYER_NAMES:
        return f"unknown.{name}"
    return f"layers.{match[1]}.{LAYER_NAMES[match[2]]}" + (".bias" if match[3] == "bias" else "")
