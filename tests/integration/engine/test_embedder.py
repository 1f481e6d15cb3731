"""Embedder: texts in, vectors out, in this process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.tiny_encoders import CONTEXT, ENCODERS, add_modules, make, tokenizer

from polyfleet.engine import Embedder

TEXTS = ["a cab", "", "Bad, bad!", "a b c d e f g h " * 20, "face"]


def expected(reference: Any, longest: int, *, cls: bool = False) -> NDArray[Any]:
    """As sentence-transformers: cut, pooled, of length 1."""
    cutting, rows = tokenizer(), []
    cutting.enable_truncation(longest)
    for text in TEXTS:
        with torch.inference_mode():
            states = reference(torch.tensor([cutting.encode(text).ids])).last_hidden_state[0].double().numpy()
        pooled = states[0] if cls else states.mean(0)
        rows.append(pooled / np.linalg.norm(pooled))
    return np.stack(rows)


def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    reference = make(ENCODERS["bert"], tmp_path)
    with Embedder(str(tmp_path), device="cpu", threads=1) as embedder:
        assert (embedder.dimensions, embedder.dtype) == (64, "float32")
        found = embedder.encode(TEXTS, batch_size=2)
        assert found.shape == (5, 64)
        assert found.dtype == np.float32
        assert (found * expected(reference, CONTEXT)).sum(-1).min() >= 0.9999
        np.testing.assert_array_equal(embedder.encode(TEXTS[0]), found[0])
        assert embedder.encode([]).shape == (0, 64)
        with pytest.raises(ValueError, match="batch_size must be 1 or more, not 0"):
            embedder.encode(TEXTS, batch_size=0)


def test_a_folder_that_wants_plain_vectors_of_the_first_token(tmp_path: Path) -> None:
    reference = make(ENCODERS["bert"], tmp_path)
    add_modules(tmp_path, "cls_token", normalize=False, longest=12)
    with Embedder(str(tmp_path), device="cpu", quantization="int8", threads=1) as embedder:
        found = embedder.encode(TEXTS, normalize=False)
    lengths = np.linalg.norm(found, axis=-1)
    assert np.abs(lengths - 1).min() > 0.1
    assert (found / lengths[:, None] * expected(reference, 12, cls=True)).sum(-1).min() >= 0.995  # in 8 bits


def test_what_it_refuses(tmp_path: Path) -> None:
    make(ENCODERS["bert"], tmp_path)
    with pytest.raises(ValueError, match="quantization must be None or one of int8, fp8, int4, not 'int2'"):
        Embedder(str(tmp_path), quantization="int2")
    with pytest.raises(ValueError, match="int8 stays in memory on the CPU alone"):
        Embedder(str(tmp_path), device="cuda", quantization="int8")
    with pytest.raises(ValueError, match="fp8 weights are not kept on cpu"):
        Embedder(str(tmp_path), device="cpu", quantization="fp8")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="has no tokenizer, which texts need"):
        Embedder(str(tmp_path), device="cpu")
