"""The head of a decoder that ranks documents: one row in place of its output's."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.models.architecture import TensorNames
from polyfleet.models.config import ModelConfig


def scoring(tensors: Iterable[Weight], names: TensorNames, config: ModelConfig, head: str = "") -> Iterator[Weight]:
    """The tensors, with a row `score.weight` in place of the head: yes less no.

    `head`: the tensor that holds the rows of these tokens alone; else they are rows of the model's output.
    """
    output = "embedding" if config.tied_embeddings else "lm_head"
    for tensor in tensors:
        if tensor.name == head:
            yield _score(tensor, range(tensor.rows))
            continue
        known = names.graph_names(tensor.name)
        if known == (output,) and not head:
            yield _score(tensor, config.score_tokens)
        if "lm_head" not in known:
            yield tensor


def score_names(names: TensorNames) -> TensorNames:
    """With the row's."""
    return replace(names, names={**names.names, "score": "score"})


def _score(tensor: Weight, rows: Iterable[int]) -> Weight:
    picked = tensor.data[list(rows)]
    taken = replace(tensor, rows=len(picked), data=picked)
    yes, *no = dequantise(taken, torch.float32)
    return Weight("score.weight", WeightFormat.F32, 1, tensor.columns, (yes - no[0] if no else yes)[None])
