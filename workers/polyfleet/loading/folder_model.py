"""From a Hugging Face folder (config.json and safetensors) to a LoadedModel. Nothing in the folder is executed."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from polyfleet.kernels.quantisation import DENSE_DTYPES
from polyfleet.kernels.weights import Weight, WeightFormat
from polyfleet.loading import mxfp4
from polyfleet.loading.folder_config import read_config
from polyfleet.loading.folder_files import check_is_model, weight_files
from polyfleet.loading.folder_tokenizer import folder_tokenizer
from polyfleet.loading.model import LoadedModel, ModelFileError
from polyfleet.loading.placing import place_all
from polyfleet.loading.progress import Progress
from polyfleet.loading.shapes import check_config, check_weights

FORMATS: Mapping[torch.dtype, WeightFormat] = {dtype: form for form, dtype in DENSE_DTYPES.items()}


def load_folder(path: str, progress: Progress) -> LoadedModel:
    """Load the folder; raises ModelFileError."""
    folder = Path(path)
    check_is_model(folder)
    architecture, config = read_config(folder)
    files, tensors = weight_files(folder), dict[str, Weight]()
    for number, file in enumerate(files):
        for tensor in _read_tensors(file):
            if tensor.name in tensors:
                raise ModelFileError(f"{file}: tensor {tensor.name!r} stands in two files")
            tensors[tensor.name] = tensor
        progress((number + 1) / len(files))
    check_config(path, config, len(tensors))
    weights = place_all(tensors.values(), architecture.folder_names, config)
    check_weights(path, config, weights)
    tokenizer, end_token_ids = folder_tokenizer(folder, config)
    return LoadedModel(path, replace(config, end_token_ids=end_token_ids), weights, tokenizer)


def _read_tensors(file: Path) -> Iterator[Weight]:
    try:
        with safe_open(file, framework="pt") as tensors:
            names = set(tensors.keys())
            for name in names:
                stem = name.removesuffix("_blocks").removesuffix("_scales")
                if not {f"{stem}_blocks", f"{stem}_scales"} <= names:
                    yield _tensor(file, name, tensors.get_tensor(name))
                elif name.endswith("_blocks"):
                    yield mxfp4.of_folder(stem, tensors.get_tensor(name), tensors.get_tensor(f"{stem}_scales"))
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{file}: the file is truncated or corrupt ({error})") from None


def _tensor(file: Path, name: str, data: torch.Tensor) -> Weight:
    if data.dtype is torch.uint8 and name.endswith("_blocks"):
        raise ModelFileError(f"{file}: tensor {name!r} has no scales in this file")
    if data.dtype not in FORMATS:
        known = ", ".join(form.value for form in FORMATS.values())
        kind = str(data.dtype).removeprefix("torch.")
        raise ModelFileError(f"{file}: tensor {name!r} has the unsupported type {kind} (supported: {known})")
    if data.dim() not in (1, 2, 3):
        raise ModelFileError(f"{file}: tensor {name!r} has {data.dim()} dimensions, a matrix or a vector is needed")
    matrix = data[None] if data.dim() == 1 else data.flatten(0, -2)
    return Weight(name, FORMATS[data.dtype], matrix.shape[0], matrix.shape[1], matrix)
