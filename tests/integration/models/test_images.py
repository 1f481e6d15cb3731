"""Models that see: of images and texts they come to what transformers comes to, whatever company a prompt is in."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import tiny_vision
from tests.support.tiny_vision import encoded, picture

from polyfleet.engine import Engine
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError
from polyfleet.text.images import ImageSettings, prepare
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.features import IMAGES
from polyfleet.wire.images import SequenceImage
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

TOKENS = 30
TOLERANCE = {"eager": 2e-5, "persistent": 2e-2}  # of logprobs: the library keeps keys and values in half precision


@dataclass(frozen=True)
class Shown:
    """A prompt with an image, and what transformers goes on with."""

    prompt_ids: tuple[int, ...]
    image: SequenceImage
    tokens: list[int]
    logprobs: Any  # of the first

    def request(self, name: str, **more: Any) -> SequenceRequest:
        wanted: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "logprobs": 5, **more}
        return SequenceRequest(name, self.prompt_ids, images=(self.image,), **wanted)


def shown(reference: Any, settings: ImageSettings, seed: int, tokens: int = TOKENS) -> Shown:
    image = picture(50, 30, seed=seed)
    grid, pixels = prepare(encoded(image), settings)
    text = f"<|start|>User:{settings.spelled(grid)}What is it?<end_of_utterance>\nAssistant:"
    ids = tiny_vision.tokenizer().encode(text, add_special_tokens=False).ids
    values = tiny_vision.reference_processor()(image, return_tensors="pt")["pixel_values"]
    found, logprobs = list(ids), None
    with torch.inference_mode():
        for _ in range(tokens):
            logits = reference(input_ids=torch.tensor([found]), pixel_values=values).logits[0, -1]
            logprobs = torch.log_softmax(logits.double(), -1).numpy() if logprobs is None else logprobs
            found.append(int(logits.argmax()))
    return Shown(tuple(ids), SequenceImage.of(pixels), found[len(ids) :], logprobs)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Shown, Shown]:
    """A folder and two prompts that differ in nothing but their image."""
    folder = tmp_path_factory.mktemp("seeing")
    reference = tiny_vision.make(folder)
    vision = load_model(folder).vision
    assert vision is not None
    settings = ImageSettings(**dict(vision.settings))  # type: ignore[arg-type]
    return folder, shown(reference, settings, 3), shown(reference, settings, 4)


@pytest.fixture(params=["eager", "persistent"])
def engine(request: pytest.FixtureRequest, model: tuple[Path, Shown, Shown]) -> Iterator[Engine]:
    """Steps of 16 rows, so that prompts come in parts that end within images; blocks for one prompt and a half."""
    with_dtype = {"dtype": "float32"} if request.param == "eager" else {}
    options = EngineOptions(device="cpu", executor=request.param, step_tokens=16, context_length=128, **with_dtype)  # type: ignore[arg-type]
    engine = Engine.load(str(model[0]), options)
    yield engine
    engine.check()
    engine.close()


def run(engine: Engine, *requests: SequenceRequest) -> Mapping[str, Sequence[SampledToken]]:
    found: dict[str, list[SampledToken]] = {each.sequence_id: [] for each in requests}
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for update in engine.step():
            assert not update.error
            found[update.sequence_id] += update.tokens
            CACHED[update.sequence_id] = update.cached_tokens or CACHED.get(update.sequence_id, 0)
    return found


CACHED: dict[str, int] = {}


def ids(tokens: Sequence[SampledToken]) -> list[int]:
    return [each.token_id for each in tokens]


def test_tokens_are_those_of_transformers(engine: Engine, model: tuple[Path, Shown, Shown]) -> None:
    _, first, second = model
    assert IMAGES in engine.facts.features
    assert first.prompt_ids == second.prompt_ids
    assert first.tokens != second.tokens
    token = (tokens := run(engine, first.request("alone"))["alone"])[0]
    assert ids(tokens) == first.tokens
    tolerance = TOLERANCE[engine.facts.executor]
    np.testing.assert_allclose(token.top_logprobs, first.logprobs[list(token.top_ids)], atol=tolerance, rtol=0)
    # The same prompt with another image reuses nothing behind its beginning; with the same it does.
    text = SequenceRequest("text", tuple(range(20, 60)), max_tokens=TOKENS, ignore_eos=True)
    lone = run(engine, text)["text"]
    found = run(engine, second.request("other"), text, first.request("again"))
    assert [ids(found[each]) for each in ("other", "again", "text")] == [second.tokens, first.tokens, ids(lone)]
    assert CACHED["again"] > 16 >= CACHED["other"] == 0


def test_preempted_sequences_keep_what_they_see(model: tuple[Path, Shown, Shown]) -> None:
    """Blocks do for one and a half of the sequences, so one is computed again."""
    folder, first, second = model
    room = {"kv_cache_tokens": 140, "context_length": 120, "block_size": 4, "max_sequences": 2}
    options = EngineOptions(device="cpu", executor="eager", dtype="float32", **room)  # type: ignore[arg-type]
    engine = Engine.load(str(folder), options)
    found = run(engine, first.request("a"), second.request("b"))
    assert engine.status().preemptions > 0
    assert (ids(found["a"]), ids(found["b"])) == (first.tokens, second.tokens)
    moved = first.request("moved", generated_ids=tuple(first.tokens[:7]))  # as it begins again elsewhere
    assert ids(run(engine, moved)["moved"]) == first.tokens[7:]
    engine.check()
    engine.close()


def test_what_does_not_fit_is_refused(engine: Engine, model: tuple[Path, Shown, Shown]) -> None:
    """And what can't be seen ends its sequence alone."""
    _, first, _ = model
    bad = (
        (SequenceImage(first.image.pixels[:-1], first.image.digest), "must have crops of 768 bytes each"),
        (SequenceImage(b"", first.image.digest), "must have crops"),
        (SequenceImage(first.image.pixels, b"short"), "must have digests of 16 bytes"),
        (SequenceImage.of(first.image.pixels[:768]), "have 4 rows, but the prompt has 20 tokens for them"),
    )
    for image, problem in bad:
        with pytest.raises(FieldError, match=problem):
            engine.add(SequenceRequest("bad", first.prompt_ids, images=(image,)))
    assert not engine.has_work
    blind = SequenceRequest("blind", first.prompt_ids, max_tokens=3, ignore_eos=True)  # its tokens are tokens
    assert ids(run(engine, blind)["blind"]) != first.tokens[:3]


@pytest.mark.parametrize(("kind", "seeing"), [("smolvlm", {"image_size": 20, "num_attention_heads": 4})])
def test_positions_finer_than_crops(kind: str, seeing: dict[str, Any], tmp_path: Path) -> None:
    reference = tiny_vision.make(tmp_path, kind, **seeing)
    engine = Engine.load(str(tmp_path), EngineOptions(device="cpu", executor="eager", dtype="float32"))
    assert engine.tokenizer is not None
    settings = ImageSettings(**json.loads(engine.tokenizer.document)["images"])
    expected = shown(reference, settings, 5, tokens=1)
    (token,) = run(engine, expected.request("one", max_tokens=1))["one"]
    np.testing.assert_allclose(token.top_logprobs, expected.logprobs[list(token.top_ids)], atol=2e-5, rtol=0)
    engine.close()


def test_without_its_processor_it_reads_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the part that sees is not understood, or not whole."""
    tiny_vision.make(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    stated = path.read_text()
    path.write_text(json.dumps({**json.loads(stated), "do_normalize": False}))
    assert load_model(tmp_path).vision is None
    assert "images are not taken: " in caplog.text
    assert "do_normalize = false is not supported" in caplog.text
    path.unlink()
    loaded = load_model(tmp_path)
    assert loaded.vision is None
    assert loaded.tokenizer is not None
    assert "images" not in json.loads(loaded.tokenizer.document)
    path.write_text(stated)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["hidden_size"] = 32
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="the tensor for 'patches' of the part that sees is 64 x 48, not 32 x 48"):
        load_model(tmp_path)
