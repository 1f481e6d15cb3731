"""Every encoder against transformers, in float32: vectors alone and in company, pooled as the model's files say."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.tiny_encoders import CONTEXT, ENCODERS, VOCABULARY, make, write_gguf
from tokenizers import Tokenizer

from polyfleet.engine.engine import Engine
from polyfleet.loading.load import load_model
from polyfleet.models.registry import ARCHITECTURES
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest

TOLERANCES = {"eager": 5e-5, "persistent": 2e-2}  # the CPU library's cache has half precision
LENGTHS = (1, 2, 17, 62, 30, 30)


@cache
def _folders() -> Any:
    return TemporaryDirectory()


@cache
def checkpoint(name: str) -> tuple[Path, Any]:
    """A folder and transformers' model, made once."""
    folder = Path(_folders().name) / name
    return folder, make(ENCODERS[name], folder)


def texts() -> list[tuple[int, ...]]:
    random = np.random.default_rng(5)
    return [tuple(random.integers(2, VOCABULARY, length).tolist()) for length in LENGTHS]


def engine_of(path: Path, executor: str, **options: Any) -> Engine:
    dtype = "float32" if executor == "eager" else "auto"
    return Engine.load(str(path), EngineOptions(device="cpu", executor=executor, dtype=dtype, threads=1, **options))


def hidden_states(reference: Any, ids: tuple[int, ...]) -> NDArray[Any]:
    with torch.inference_mode():
        states: NDArray[Any] = reference(torch.tensor([ids])).last_hidden_state[0].double().numpy()
    return states


def embed(engine: Engine, wanted: dict[str, SequenceRequest]) -> dict[str, NDArray[Any]]:
    for request in wanted.values():
        engine.add(request)
    found: dict[str, NDArray[Any]] = {}
    while engine.has_work:
        for update in engine.step():
            assert not update.error
            found[update.sequence_id] = np.array(update.embedding)
        engine.check()
    return found


@pytest.mark.parametrize("executor", TOLERANCES)
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_equal_transformers(name: str, executor: str) -> None:
    """All poolings of all texts together, in steps that have no room for all of them; then the longest alone."""
    folder, reference = checkpoint(name)
    longest = CONTEXT if name != "roberta" else CONTEXT - 2
    engine = engine_of(folder, executor, step_tokens=64, max_sequences=3)
    assert (engine.facts.context_length, engine.facts.embeds_only) == (longest, True)
    assert (engine.facts.pooling, engine.facts.normalized) == (Pooling.MEAN, True)
    wanted = {
        f"{at} {kind.value}": SequenceRequest(f"{at} {kind.value}", ids, pooling=kind)
        for at, ids in enumerate(texts())
        for kind in Pooling
    }
    found = embed(engine, wanted)
    for key, request in wanted.items():
        states = hidden_states(reference, request.prompt_ids)
        expected = {Pooling.MEAN: states.mean(0), Pooling.CLS: states[0], Pooling.LAST: states[-1]}[request.pooling]  # type: ignore[index]
        np.testing.assert_allclose(found[key], expected, atol=TOLERANCES[executor], rtol=0, err_msg=key)
    alone = embed(engine, {"x": SequenceRequest("x", texts()[3], pooling=Pooling.MEAN)})["x"]
    if executor == "persistent":  # a row computes to the same bits in any company
        np.testing.assert_array_equal(alone, found["3 mean"])
    engine.close()


@pytest.mark.parametrize("name", [name for name, tiny in ENCODERS.items() if tiny.gguf])
def test_gguf_files_hold_the_same_model(name: str, tmp_path: Path) -> None:
    folder, reference = checkpoint(name)
    write_gguf(ENCODERS[name], reference, tmp_path / "model.gguf", pooling=2)
    one, other = load_model(folder), load_model(tmp_path / "model.gguf")
    assert (other.config.pooling, other.config.embeds_only, other.config.causal) == (Pooling.CLS, True, False)
    assert one.weights.keys() == other.weights.keys()
    for key, weight in one.weights.items():
        np.testing.assert_array_equal(weight.data.numpy(), other.weights[key].data.numpy(), err_msg=key)
    assert one.tokenizer is not None
    assert other.tokenizer is not None
    documents = [json.loads(each.document)["tokenizer"] for each in (one.tokenizer, other.tokenizer)]
    mine, theirs = (Tokenizer.from_str(json.dumps(each)) for each in documents)
    for text in ("Abé cab?", "hello", "a 中x", ""):
        assert mine.encode(text).tokens == theirs.encode(text).tokens
    engine = engine_of(tmp_path / "model.gguf", "eager")
    found = embed(engine, {"x": SequenceRequest("x", texts()[2], pooling=Pooling.CLS)})["x"]
    np.testing.assert_allclose(found, hidden_states(reference, texts()[2])[0], atol=5e-5, rtol=0)


def test_what_an_encoder_refuses() -> None:
    engine = engine_of(checkpoint("bert")[0], "eager")
    with pytest.raises(FieldError, match="pooling: must be set: bert makes embeddings and draws no tokens"):
        engine.add(SequenceRequest("x", (2, 3), max_tokens=1))
    with pytest.raises(FieldError, match="1 to 64 tokens"):
        engine.add(SequenceRequest("x", (2,) * (CONTEXT + 1), pooling=Pooling.MEAN))
    with pytest.raises(ValueError, match="step_tokens: must be at least the context, 64: texts are not cut"):
        engine_of(checkpoint("bert")[0], "eager", step_tokens=40, max_sequences=2)


def test_every_encoder_is_tried() -> None:
    assert {name.partition(",")[0] for name in ENCODERS} <= set(ARCHITECTURES)
