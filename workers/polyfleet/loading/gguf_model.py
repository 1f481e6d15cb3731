"""From a GGUF file to configuration, weights and tokenizer assets."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from polyfleet.kernels.quantisation import DENSE_DTYPES, row_bytes
from polyfleet.kernels.weights import Weight
from polyfleet.loading import mxfp4
from polyfleet.loading.gguf_file import GgufFile, TensorInfo
from polyfleet.loading.gguf_metadata import check_file_metadata, check_model_metadata
from polyfleet.loading.gguf_split import read_files
from polyfleet.loading.gguf_tokenizer import gguf_tokenizer
from polyfleet.loading.gguf_vocabulary import gguf_end_tokens
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.placing import Keep, place_all
from polyfleet.loading.progress import Progress
from polyfleet.loading.ranking import gguf_ranking, score_names, scoring
from polyfleet.loading.shapes import check_config, check_weights
from polyfleet.models.architecture import Architecture, TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.registry import UnknownArchitecture, of_gguf
from polyfleet.wire.requests import Pooling

CLASSES = "cls.output.weight"  # of files that rank
POOLINGS = (Pooling.MEAN, Pooling.CLS, Pooling.LAST)  # pooling_type 1, 2, 3


def load_gguf(path: str, progress: Progress, keeping: Callable[[ModelConfig], Keep] | None = None) -> LoadedModel:
    """Load the file, or what is kept of it; raises ModelFileError."""
    file = read_files(path)
    fields = Fields(path, file.metadata)
    architecture, config = read_config(file, fields)
    check_config(path, config, len(file.tensors))
    check_model_metadata(fields, config)
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


def read_config(file: GgufFile, fields: Fields) -> tuple[Architecture, ModelConfig]:
    """The model's architecture and configuration from metadata and tensor directory."""
    check_file_metadata(fields)
    name = fields.text("general.architecture")
    try:
        sparse, ranks = bool(fields.values.get(f"{name}.expert_count")), CLASSES in file.tensors
        architecture = of_gguf(name, sparse=sparse, ranks=ranks)
    except UnknownArchitecture as error:
        raise fields.error(str(error)) from None
    embedding = file.tensors.get("token_embd.weight")

    def numbers(tensor: str) -> list[float]:
        info = file.tensors.get(tensor)
        found: list[float] = [] if info is None or info.format.quantised else _tensor(info).flatten().tolist()
        return found

    keys = GgufKeys(fields.under(f"{name}."), file.tensors, embedding.rows if embedding else 0, numbers)
    title = fields.text("general.name", Path(file.path).stem)
    with fields.in_range():
        config = architecture.read_gguf(keys)
    config = replace(config, architecture=architecture.name, name=title, end_token_ids=gguf_end_tokens(fields))
    config = replace(config, pooling=_pooling(keys.fields, ranks=ranks))
    if config.causal:
        config = gguf_ranking(fields, keys.rows(CLASSES), config)
    return architecture, config


def _pooling(fields: Fields, *, ranks: bool) -> Pooling | None:
    """Cross encoders' is CLS; decoders that rank take another."""
    kind = fields.count("pooling_type", 0, minimum=-1)
    if kind > len(POOLINGS) and not ranks:
        raise fields.error(f"pooling_type = {kind} is not supported: 1 is mean, 2 cls, 3 last; 4 needs {CLASSES}")
    return Pooling.CLS if ranks else POOLINGS[kind - 1] if kind > 0 else None


def _tensor(info: TensorInfo) -> torch.Tensor:
    """A view of the mapped file: numbers, or raw blocks as bytes."""
    if info.size == 0:
        return torch.empty((info.rows, 0), dtype=torch.uint8)
    raw = torch.frombuffer(info.buffer, dtype=torch.uint8, count=info.size, offset=info.offset)
    if info.mxfp4:
        return mxfp4.of_gguf(info.name, raw.view(info.rows, -1)).data
    if info.format.quantised:
        return raw.view(info.rows, row_bytes(info.format, info.columns))
    return raw.view(DENSE_DTYPES[info.format]).view(info.rows, info.columns)
