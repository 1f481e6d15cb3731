"""A dense folder written anew with the matrices of its layers in 4 or 8 bits, as compressed-tensors packs them."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from polyfleet.graph.ops import OpKind
from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.folder.config import read_config
from polyfleet.loading.folder.files import INDEX, check_is_model, read_headers, weight_files
from polyfleet.loading.folder.tensors import FORMATS, Tensors, open_tensors
from polyfleet.loading.headers import PART
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.other_kinds import PICKLES
from polyfleet.loading.placing import place
from polyfleet.loading.progress import Progress
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.mixture import MixtureConfig
from polyfleet.models.recorder import Recorder
from polyfleet.models.registry import weight_shapes

GROUPS = (128, 64, 32)  # columns: the first that fits where none is asked for
SHRINKS = {
    4: (1.0, 0.95, 0.9, 0.85, 0.8),
    8: (1.0,),
}  # of a group's range, of which the one with the least error is taken
ROWS_AT_ONCE = 1 << 22  # weights
LEFT_OUT = (
    *(f"*{suffix}" for suffix in PICKLES),
    "*.safetensors",
    "*.safetensors.index.json",
    "*.py",
    "*.gguf",
    "config.json",
)
HEADS = {"embedding", "lm_head"}


@dataclass(frozen=True, slots=True)
class Quantised:
    """What was written."""

    group: int  # columns that share a scale
    quantised: int  # matrices
    kept: int  # other tensors
    bytes_before: int
    bytes_after: int


def quantise_folder(source: Path, destination: Path, bits: int, group: int, progress: Progress) -> Quantised:
    """Write `destination`, a folder that is not there yet or empty; `group` 0: the largest usual one that fits.

    Weights become the nearest of 2^bits steps around 0, with a scale for each `group` columns of a row. Raises
    ModelFileError, or OSError where it can't be written; nothing is left of what was not written to its end.
    """
    check_is_model(source)
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ModelFileError(f"{destination}: is there already, and is no empty folder")
    architecture, config, scheme = read_config(source)
    if scheme is not None:
        raise ModelFileError(f"{source}: is quantised already ({scheme.method})")
    partial = destination.with_name(f".{destination.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        read_headers(source, files := weight_files(source))  # which refuses what is not whole
        with open_tensors(files) as tensors:
            matrices = _Matrices(tensors, architecture, config)
            group = _group(source, group, matrices.columns)
            written, places = _write_weights(matrices, partial, bits, group, progress)
            _write_rest(source, partial, places, _stated(matrices, bits, group))
        if destination.exists():
            destination.rmdir()
        partial.rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return written


class _Matrices:
    """What is quantised: the matrices of layers' products and experts, but for routers, by their tensors' names.

    Experts of a stack are written one by one, as others know them in 4 and 8 bits.
    """

    def __init__(self, tensors: Tensors, architecture: Architecture, config: ModelConfig) -> None:
        self.tensors, self._config, self._names = tensors, config, architecture.folder_names
        graph = architecture.record(config, Recorder(config))
        self._read = {name for op in graph.ops if op.kind in (OpKind.LINEAR, OpKind.EXPERTS) for name in op.weights}
        self.names = frozenset(filter(self._is_one, tensors.places))

    @property
    def columns(self) -> set[int]:
        """How many they have."""
        shapes = [self.tensors.get(name).shape for name in self.names]
        turned = self._names.turned_stacks
        return {shape[1] if turned or len(shape) == 2 else shape[2] for shape in shapes}

    def of(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The matrices of one of `names`, and what they are called when they are written."""
        if tensor.dim() == 2:
            yield name, tensor
            return
        assert isinstance(self._config, MixtureConfig)
        rows = tensor.flatten(0, -2)
        stack = Weight(name, FORMATS[tensor.dtype], rows.shape[0], rows.shape[1], rows)
        for part in place(stack, self._names, self._config, weight_shapes(self._config)):
            for number, matrix in enumerate(part.data.view(self._config.route.experts, -1, part.columns)):
                yield f"{self._names.of_expert(name, part.name, number)}.weight", matrix

    def _is_one(self, name: str) -> bool:
        graph_names = self._names.graph_names(name)
        known = [PART.sub(r"\1", each) for each in graph_names]
        if known and known[0].rpartition(".")[2] in self._names.turned:
            return False  # columns first, which compressed-tensors does not have
        if not known or not all(each in self._read - HEADS and not each.endswith("router") for each in known):
            return False
        dimensions = self.tensors.get(name).dim()
        if dimensions == 3:
            return all(self._names.of_expert(name, each, 0) for each in graph_names)
        return dimensions == 2 and name.endswith(".weight")


def _group(source: Path, asked: int, columns: set[int]) -> int:
    for group in (asked,) if asked else GROUPS:
        if columns and all(width % group == 0 for width in columns):
            return group
    widths = ", ".join(map(str, sorted(columns)))
    if not columns:
        raise ModelFileError(f"{source}: has no matrices of layers, one by one, that could be quantised")
    raise ModelFileError(f"{source}: groups of {asked or GROUPS[-1]} columns don't divide rows of {widths}")


def _write_weights(
    matrices: _Matrices, folder: Path, bits: int, group: int, progress: Progress
) -> tuple[Quantised, dict[str, str]]:
    """File by file; with what was written come the file of each tensor."""
    tensors, places = matrices.tensors, dict[str, str]()
    before = after = done = quantised = 0
    for file in tensors.handles:
        stored: dict[str, Tensor] = {}
        for name in [name for name, at in tensors.places.items() if at == file]:
            tensor = tensors.get(name)
            before += tensor.nbytes
            try:
                for each, matrix in matrices.of(name, tensor) if name in matrices.names else ():
                    stored |= packed(each, matrix, bits, group)
                    quantised += 1
            except ValueError as error:
                raise tensors.error(name, str(error)) from None
            if name not in matrices.names:
                stored[name] = tensor
            done += 1
            progress(done / len(tensors.places))
        after += sum(tensor.nbytes for tensor in stored.values())
        places |= dict.fromkeys(stored, file.name)
        try:
            save_file(stored, folder / file.name, metadata={"format": "pt"})
        except SafetensorError as error:  # what the system said is in its text
            raise OSError(0, str(error), str(folder / file.name)) from None
    kept = len(tensors.places) - len(matrices.names)
    return Quantised(group, quantised, kept, before, after), places


def packed(name: str, tensor: Tensor, bits: int, group: int) -> dict[str, Tensor]:
    """The tensors that hold a matrix [O, I]: words of codes, scales [O, I / group], and its shape."""
    step = max(1, ROWS_AT_ONCE // tensor.shape[1])
    parts = [_nearest(rows, bits, group) for rows in torch.split(tensor, step)]
    codes, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return {f"{name}_packed": codes, f"{name}_scale": scales, f"{name}_shape": torch.tensor(tensor.shape)}


def _nearest(rows: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Words of codes, which count from 2^(bits - 1), and scales of the rows' type."""
    wide = rows.float().view(len(rows), -1, group)
    if not bool(wide.isfinite().all()):
        raise ValueError("holds numbers that are not finite")
    most, peak = 2 ** (bits - 1) - 1, wide.abs().amax(-1, keepdim=True)
    best = torch.full_like(peak, torch.inf)
    codes, scales = torch.zeros_like(wide), torch.zeros_like(peak)
    for shrink in SHRINKS[bits]:
        scale = (peak * (shrink / most)).to(rows.dtype).float().clamp_min(torch.finfo(rows.dtype).tiny)
        found = (wide / scale).round_().clamp_(-most - 1, most)
        error = (found * scale - wide).square_().sum(-1, keepdim=True)
        better = error < best
        best, scales = torch.where(better, error, best), torch.where(better, scale, scales)
        codes = torch.where(better, found, codes)
    places = (codes + most + 1).to(torch.int32).view(len(rows), -1, 32 // bits)
    words = torch.zeros(places.shape[:2], dtype=torch.int32)
    for at in range(32 // bits):
        words |= places[..., at] << bits * at
    return words, scales.squeeze(-1).to(rows.dtype)


def _stated(matrices: _Matrices, bits: int, group: int) -> dict[str, Any]:
    """`quantization_config`."""
    tensors = matrices.tensors
    kept = {name for name in tensors.places if name.endswith(".weight") and name not in matrices.names}
    ignored = sorted(name.removesuffix(".weight") for name in kept if tensors.get(name).dim() == 2)
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": group}
    weights |= {"dynamic": False, "observer": "minmax", "actorder": None, "block_structure": None}
    groups = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": groups},
        "ignore": sorted({*ignored, "lm_head"}),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _write_rest(source: Path, folder: Path, places: Mapping[str, str], stated: Mapping[str, Any]) -> None:
    """Index, configuration, and all that is no weight and no code."""
    for file in sorted(source.iterdir()):
        if file.is_file() and not any(file.match(pattern) for pattern in LEFT_OUT):
            shutil.copyfile(file, folder / file.name)
    if (source / INDEX).is_file():
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"quantization_config": stated}
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
