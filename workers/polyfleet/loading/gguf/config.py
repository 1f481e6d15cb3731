"""A GGUF file's metadata and tensor directory as a ModelConfig. No torch is imported here, and no weight is read."""

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from polyfleet.kernels.weights.formats import WeightFormat
from polyfleet.loading.gguf.file import GgufFile, TensorInfo
from polyfleet.loading.gguf.metadata import check_file_metadata
from polyfleet.loading.gguf.ranking import gguf_ranking
from polyfleet.loading.gguf.vocabulary import gguf_end_tokens
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.registry import UnknownArchitecture, of_gguf
from polyfleet.wire.requests import Pooling

CLASSES = "cls.output.weight"  # of files that rank
POOLINGS = (Pooling.MEAN, Pooling.CLS, Pooling.LAST)  # pooling_type 1, 2, 3
CODES: Mapping[WeightFormat, str] = {WeightFormat.F32: "f", WeightFormat.F16: "e", WeightFormat.BF16: "H"}  # struct's


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
        found: list[float] = [] if info is None or info.format.quantised else _numbers(info)
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


def _numbers(info: TensorInfo) -> list[float]:
    """Of a dense tensor, all of them."""
    code = CODES[info.format]
    found = struct.unpack_from(f"<{info.rows * info.columns}{code}", info.buffer, info.offset)
    if info.format is WeightFormat.BF16:  # the upper half of float32's bits
        found = struct.unpack(f"<{len(found)}f", struct.pack(f"<{len(found)}I", *(each << 16 for each in found)))
    return list(found)
