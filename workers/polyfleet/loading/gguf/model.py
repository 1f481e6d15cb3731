"""From a GGUF file to configuration, weights and tokenizer assets."""

from collections.abc import Callable, Iterable

import torch

from polyfleet.kernels.weights.quantisation import DENSE_DTYPES, row_bytes
from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.gguf.config import CLASSES, read_config
from polyfleet.loading.gguf.file import TensorInfo
from polyfleet.loading.gguf.metadata import check_model_metadata
from polyfleet.loading.gguf.split import read_files
from polyfleet.loading.gguf.tokenizer import gguf_tokenizer
from polyfleet.loading.headers import check_config, check_tensors
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.placing import Keep, place_all
from polyfleet.loading.progress import Progress
from polyfleet.loading.scoring import score_names, scoring
from polyfleet.loading.shapes import check_weights
from polyfleet.models.architecture import TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields


def load_gguf(path: str, progress: Progress, keeping: Callable[[ModelConfig], Keep] | None = None) -> LoadedModel:
    """Load the file, or what is kept of it; raises ModelFileError."""
    file = read_files(path)
    fields = Fields(path, file.metadata)
    architecture, config = read_config(file, fields)
    check_config(path, config, len(file.tensors))
    check_model_metadata(fields, config)
    check_tensors(path, config, architecture.gguf_names, file.sides)
    tensors = list[Weight]()
    for number, info in enumerate(file.tensors.values()):
        tensors.append(Weight(info.name, info.format, info.rows, info.columns, _tensor(info)))
        progress((number + 1) / len(file.tensors))
    names: TensorNames = architecture.gguf_names
    weights: Iterable[Weight] = tensors
    if config.score_tokens:
        names, weights = score_names(names), scoring(tensors, names, config, CLASSES)
    placed = place_all(weights, names, config, keeping(config) if keeping else None)
    if keeping is None:
        check_weights(path, config, placed)
    return LoadedModel(path, config, placed, gguf_tokenizer(fields, config))


def _tensor(info: TensorInfo) -> torch.Tensor:
    """A view of the mapped file: numbers, or raw blocks as bytes."""
    if info.size == 0:
        return torch.empty((info.rows, 0), dtype=torch.uint8)
    raw = torch.frombuffer(info.buffer, dtype=torch.uint8, count=info.size, offset=info.offset)
    if info.format.quantised:
        return raw.view(info.rows, row_bytes(info.format, info.columns))
    return raw.view(DENSE_DTYPES[info.format]).view(info.rows, info.columns)
