"""Checks that weights have the names and shapes that a configuration implies, and numbers that are finite."""

import math
import re

import torch

from polyfleet.kernels.weights.quantisation import CHUNK_WEIGHTS
from polyfleet.kernels.weights.weight import Weights
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.placing import TIED_HEAD
from polyfleet.loading.progress import Progress, silent
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import ARCHITECTURES, weight_shapes


def check_weights(path: str, config: ModelConfig, weights: Weights) -> None:
    """Raise ModelFileError for the first weight that is missing, misshapen or of no use to the architecture."""
    shapes = weight_shapes(config)
    for name, (rows, columns) in shapes.items():
        weight = weights.get(name)
        if weight is None:
            raise ModelFileError(f"{path}: {_missing(name, weights)}")
        if rows == 1 and weight.format.quantised:
            raise ModelFileError(f"{path}: the vector {name!r} is quantised, which is not supported")
        if (weight.rows, weight.columns) != (rows, columns):
            found = f"{weight.rows} x {weight.columns}"
            raise ModelFileError(
                f"{path}: the tensor for {name!r} is {found}, the configuration says {rows} x {columns}"
            )
    if TIED_HEAD in weights:
        name = weights[TIED_HEAD].name
        raise ModelFileError(
            f"{path}: the tensor {name!r} differs from the embedding, which tie_word_embeddings says it is"
        )
    title = ARCHITECTURES[config.architecture].title
    for name, weight in weights.items():
        if name not in shapes and not (
            name.endswith(".bias") and not weight.data.any()
        ):  # a bias of zeros adds nothing
            raise ModelFileError(
                f"{path}: tensor {name.removeprefix('unknown.')!r} is of no use to a {title} model of this shape"
            )


def check_numbers(path: str, weights: Weights, progress: Progress = silent) -> None:
    """Raise ModelFileError for the first weight with numbers that are not finite. Reads all, many from the disk.

    `progress` is called with the share done.
    """
    for number, (name, weight) in enumerate(weights.items()):
        progress(number / len(weights))
        if not weight.format.quantised and not _is_finite(weight.data):
            raise ModelFileError(f"{path}: the tensor for {name!r} holds numbers that are not finite")


def _missing(name: str, weights: Weights) -> str:
    """What is missing; of a stack that has parts, which of them."""
    parts = {int(match[1]) for each in weights if (match := re.fullmatch(rf"{re.escape(name)}\[(\d+)\]", each))}
    gap = next((number for number in range(max(parts, default=0)) if number not in parts), None)
    if parts and gap is None:
        return f"the experts of {name!r} are stored in several formats or widths, which is not supported"
    return f"the tensor for {name + f'[{gap}]' * bool(parts)!r} is missing"


def _is_finite(numbers: torch.Tensor) -> bool:
    """Sums tell, unless finite numbers sum up to more than a float holds; of some rows, as each copies to float32."""
    parts = torch.split(numbers, max(1, CHUNK_WEIGHTS // max(1, numbers.shape[-1])))
    return all(math.isfinite(part.sum(dtype=torch.float32).item()) or bool(part.isfinite().all()) for part in parts)
