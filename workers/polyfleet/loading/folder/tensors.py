"""The tensors of a folder's safetensors files, whichever file they lie in, as weights of the folder's own names."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from polyfleet.kernels.host_memory import Garbage, let_go
from polyfleet.kernels.weights.quantisation import DENSE_DTYPES
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.progress import Progress
from polyfleet.loading.quantised.scheme import Scheme

log = logging.getLogger(__name__)

FORMATS: Mapping[torch.dtype, WeightFormat] = {dtype: form for form, dtype in DENSE_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Tensors:
    """The open files: the file of each tensor, by its name, and the handle of each file."""

    places: Mapping[str, Path]
    handles: Mapping[Path, Any]

    def get(self, name: str) -> torch.Tensor:
        """A view of the mapped file; raises ModelFileError."""
        file = self.places[name]
        try:
            found: torch.Tensor = self.handles[file].get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelFileError(f"{file}: the file is truncated or corrupt ({error})") from None
        return found

    def error(self, name: str, reason: str) -> ModelFileError:
        """The error to raise about a tensor."""
        return ModelFileError(f"{self.places[name]}: tensor {name!r} {reason}")


@contextmanager
def open_tensors(files: Sequence[Path]) -> Iterator[Tensors]:
    """Maps the files, for as long as tensors are read; raises ModelFileError."""
    places, handles = dict[str, Path](), dict[Path, Any]()
    with ExitStack() as stack:
        for file in files:
            try:
                handles[file] = stack.enter_context(safe_open(file, framework="pt"))
                names = list(handles[file].keys())
            except (SafetensorError, OSError, ValueError) as error:
                raise ModelFileError(f"{file}: the file is truncated or corrupt ({error})") from None
            places.update(dict.fromkeys(names, file))
        yield Tensors(places, handles)


def read_weights(tensors: Tensors, scheme: Scheme | None, progress: Progress) -> Iterator[Weight]:
    """All weights; quantised ones in the order of their names. Raises ModelFileError for one that can't be read."""
    quantised = scheme.weights(tensors.places) if scheme else {}
    parts = {tensor for found in quantised.values() for tensor in found.values()}
    dense, done, garbage = list[str](), 0, Garbage()
    for name in tensors.places:
        if name in parts:
            continue
        done += 1
        if scheme is None or not re.fullmatch(scheme.ignored, name):
            yield dense_weight(tensors, name)
        progress(done / len(tensors.places))
    for name in sorted(quantised):
        assert scheme is not None
        weight = _quantised(tensors, scheme, name, quantised[name])
        if not weight.format.quantised:
            dense.append(name)
        garbage.add(2 * weight.rows * weight.columns)  # codes, when they were unpacked and stacked
        yield weight
        done += len(quantised[name])
        progress(done / len(tensors.places))
    if dense and scheme:
        count, others = f"{len(dense)} of {len(quantised)}", " and others" if len(dense) > 1 else ""
        log.warning(
            "%s %s weights are dequantised, as no kernel has such groups: %s%s", count, scheme.method, dense[0], others
        )


def _quantised(tensors: Tensors, scheme: Scheme, name: str, parts: Mapping[str, str]) -> Weight:
    found = {suffix: tensors.get(tensor) for suffix, tensor in parts.items()}
    try:
        weight = scheme.read(name, found)
        for tensor in found.values():
            let_go(tensor)
        return weight
    except ModelFileError:
        raise
    except (ValueError, RuntimeError, IndexError) as error:
        ours = isinstance(error, ValueError)  # torch's reasons do not say what they are about
        reason = str(error) if ours else f"does not fit what stands beside it ({error})"
        raise tensors.error(next(iter(parts.values())), reason) from None


def dense_weight(tensors: Tensors, name: str, given: str = "") -> Weight:
    """A tensor as a weight of its own name or a given one: stacks become one matrix, as do kernels of convolutions.

    Raises ModelFileError.
    """
    data = tensors.get(name)
    if data.dtype not in FORMATS:
        known = ", ".join(form.value for form in FORMATS.values())
        kind = str(data.dtype).removeprefix("torch.")
        raise tensors.error(name, f"has the unsupported type {kind} (supported: {known})")
    if data.dim() not in (1, 2, 3, 4):
        raise tensors.error(name, f"has {data.dim()} dimensions, a matrix or a vector is needed")
    matrix = data[None] if data.dim() == 1 else data.flatten(1) if data.dim() == 4 else data.flatten(0, -2)
    return Weight(given or name, FORMATS[data.dtype], matrix.shape[0], matrix.shape[1], matrix)
