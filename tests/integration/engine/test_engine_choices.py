"""Several choices of a request, more than run at once, with drafts, structures and logprobs: as without drafts."""

import json
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from tests.integration.engine.test_engine_speculation import loaded
from tests.support.cpu_graphs import needs_library
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.engine.engine import Engine
from polyfleet.engine.facts import EngineStatus
from polyfleet.engine.loader import EngineParts
from polyfleet.text.grammar import make_grammar
from polyfleet.text.model_text import ModelText
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import GREEDY, SamplingParams
from polyfleet.wire.structure import Structure

CHOICES = 6  # of which 4 run at once
WORD = {"type": "string", "pattern": "^(red|green|blue){1,6}$"}
NAMES = ("first", "second", "third")
SCHEMA = {
    "type": "object",
    "properties": dict.fromkeys(NAMES, WORD),
    "required": [*NAMES],
    "additionalProperties": False,
}
EXAMPLE = json.dumps(dict.fromkeys(NAMES, "redgreenbluered"))
Tokens = dict[int, list[SampledToken]]


@pytest.fixture(scope="module", params=["eager", pytest.param("persistent", marks=needs_library)])
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineParts:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    extra = byte_level_metadata()
    shape = TinyShape(vocabulary=len(extra["tokenizer.ggml.tokens"]), context=512)
    write_gguf(path, shape, extra=extra)
    dtype = "float32" if request.param == "eager" else "auto"
    return loaded(path, executor=request.param, dtype=dtype, speculation="ngram", kv_cache_tokens=2048)


def answers(parts: EngineParts, params: SamplingParams, speculation: str, **more: Any) -> tuple[Tokens, EngineStatus]:
    """The tokens of each choice, by a clock that stands still."""
    assert parts.model.tokenizer is not None
    options = replace(parts.options, speculation=speculation)
    engine = Engine(parts.executor, parts.model.config, options, tokenizer=parts.model.tokenizer, clock=lambda: 0.0)
    prompt = tuple(ModelText(parts.model.tokenizer.document).encode(f"{EXAMPLE}\n" * 2))
    for choice in range(CHOICES):
        asked = SequenceRequest(str(choice), prompt, params, choice=choice, max_tokens=160, logprobs=2, **more)
        engine.add(asked)
    found: Tokens = defaultdict(list)
    while engine.has_work:
        for update in engine.step():
            assert not update.error, update.error
            found[int(update.sequence_id)] += update.tokens
        engine.check()
    return found, engine.status()


def assert_same(found: Tokens, without: Tokens) -> None:
    for choice in range(CHOICES):
        assert [each.token_id for each in found[choice]] == [each.token_id for each in without[choice]]
        for each, plain in zip(found[choice], without[choice], strict=True):
            assert math.isclose(each.logprob, plain.logprob, abs_tol=1e-3)
            assert each.top_ids == plain.top_ids
            assert len(each.top_ids) == 2


PARAMS = [
    GREEDY,
    SamplingParams(temperature=0.2, seed=5),
    SamplingParams(temperature=0.2, top_p=0.9, seed=6, repetition_penalty=1.02),
]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("structured", [False, True], ids=["free", "structured"])
def test_each_choice_is_the_one_without_drafts(parts: EngineParts, params: SamplingParams, structured: bool) -> None:
    grammar = make_grammar(Structure(json_schema=json.dumps(SCHEMA)), None) if structured else ""
    found, status = answers(parts, params, "ngram", grammar=grammar)
    without, plain = answers(parts, params, "off", grammar=grammar)
    assert_same(found, without)
    assert (plain.drafts, status.generated_tokens) == (0, plain.generated_tokens)
    assert status.drafts >= status.accepted_drafts > 0
    assert status.steps < plain.steps
    said = {tuple(each.token_id for each in tokens) for tokens in found.values()}
    assert (len(said) == 1) == params.greedy
    if structured:
        assert parts.model.tokenizer is not None
        text = ModelText(parts.model.tokenizer.document)
        for ids in said:
            jsonschema.validate(json.loads(text.decode(list(ids))), SCHEMA)
