"""Schemas as they are met: what a random model draws under one validates, or the schema is refused in a sentence."""

import json
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.text.test_text_grammar import walk

from polyfleet.text.grammar import make_grammar
from polyfleet.wire.limits import FieldError
from polyfleet.wire.structure import Structure

LETTER = {"type": "string", "pattern": "^[a-f]{1,3}$"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 9}


def closed(**properties: Any) -> dict[str, Any]:
    """An object of exactly these."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def answers(schema: Any, seeds: int = 8) -> list[Any]:
    """What a random model says under a schema, as far as it ends."""
    grammar = make_grammar(Structure(json_schema=json.dumps(schema)), None)
    return [json.loads(answer) for seed in range(seeds) if (answer := walk(grammar, seed, 160))]


def assert_valid(schema: Any, found: list[Any]) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    for each in found:
        validator.validate(each)


PYDANTIC = {  # a model of pydantic's with a nested model, an optional, a literal, a constrained list and a default
    "$defs": {
        "Colour": {"enum": ["rouge", "été", "緑"], "title": "Colour", "type": "string"},
        "Tree": {
            "properties": {
                "value": {"maximum": 9, "minimum": 0, "title": "Value", "type": "integer"},
                "left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}], "default": None},
            },
            "required": ["value"],
            "title": "Tree",
            "type": "object",
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
    "properties": {
        "colour": {"$ref": "#/$defs/Colour"},
        "tree": {"$ref": "#/$defs/Tree", "description": "A tree."},
        "kind": {"const": "a", "default": "a", "title": "Kind", "type": "string"},
        "pair": {"items": {"type": "boolean"}, "maxItems": 2, "minItems": 2, "title": "Pair", "type": "array"},
    },
    "required": ["colour", "tree", "pair"],
    "title": "Answer",
    "type": "object",
}
ZOD = {  # what zod makes of a tuple, a nullable, a discriminated union, a record and an integer
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **closed(
        pair={"type": "array", "prefixItems": [COUNT, {"type": "boolean"}], "minItems": 2, "items": False},
        note={"anyOf": [LETTER, {"type": "null"}]},
        shape={
            "oneOf": [closed(kind={"type": "string", "const": "dot"}), closed(kind={"const": "disc"}, radius=COUNT)]
        },
        whole={"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
    ),
}
HONOURED: dict[str, Any] = {
    "pydantic": PYDANTIC,
    "zod": ZOD,
    **{
        name: {"type": "string", "format": name}
        for name in ("date-time", "date", "time", "uuid", "ipv4", "ipv6", "duration")
    },
    "email of bounded length": {"type": "string", "format": "email", "maxLength": 12},
    "format and pattern": {"type": "string", "format": "date", "pattern": "^2"},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4},
    "bounds of numbers": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
    "exclusive bounds, draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 3,
    },
    "multiples of integers": {"type": "integer", "multipleOf": 7, "minimum": 3, "maximum": 100},
    "multiples of numbers": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 3},
    "several types": {"type": ["integer", "null"], "minimum": 0, "maximum": 3},
    "enum of a type": {"type": "string", "enum": ["a", 1, "é\u2028\U0001f600"]},
    "constant object": {"const": {"a": [1, None, "é"]}},
    "items by place, draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [COUNT],
        "additionalItems": False,
    },
    "properties by pattern": {"type": "object", "patternProperties": {"^x$": COUNT}, "additionalProperties": False},
    "properties of a schema": {
        "type": "object",
        "properties": {"a": COUNT},
        "required": ["a"],
        "additionalProperties": COUNT,
    },
    "a required property that is not described": {
        "type": "object",
        "required": ["z"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 1,
    },
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    "a reference and more": {"$defs": {"n": {"type": "integer", "minimum": 0}}, "$ref": "#/$defs/n", "maximum": 3},
    "an anchor": {"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "boolean"}}},
    "definitions": {"$ref": "#/definitions/x", "definitions": {"x": {"type": "boolean"}}},
}


@pytest.mark.parametrize("name", HONOURED)
def test_schemas_as_they_are_met_are_kept_to(name: str) -> None:
    found = answers(HONOURED[name], 12)
    assert len(found) > 3
    assert_valid(HONOURED[name], found)


REFUSED: dict[str, Any] = {  # by what the sentence has to name
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"const": 1}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^a$"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "if": {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "not": {"not": {"type": "string"}},
    r"\$dynamicRef": {"$dynamicRef": "#x"},
    "look-around": {"type": "string", "pattern": r"^(?!\.)[a-z]+$"},
    "WordUnicode": {"type": "string", "pattern": r"\bfoo\b"},
    "Unknown format: path": {"type": "string", "format": "path"},
    "oneOf": {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]},
    "min/maxProperties only supported": {"type": "object", "properties": {"a": COUNT, "b": COUNT}, "minProperties": 1},
    "'z' is unsatisfiable": closed(a=COUNT) | {"required": ["z"]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_kept_to_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(FieldError, match=name) as caught:
        answers(REFUSED[name])
    assert caught.value.field == "structure"
    assert "\n" not in caught.value.problem
    assert "coerce" not in caught.value.problem  # an option of the library's


@pytest.mark.parametrize(
    ("pattern", "whole"),
    [
        (r"[ab]/\\", {"a/\\", "b/\\"}),
        (r"^a|\$$|^b$", {"a", "$", "b"}),
        (r"^$", {""}),
        ("(?i)é|/\n", {"é", "É", "/\n"}),
        (r"(a)\1", "backreferences"),
        (r"\bfoo", "lookarounds"),
        ("a\\", "ends with a backslash that escapes nothing"),
        ("ab\\\\\\", "ends with a backslash that escapes nothing"),
    ],
)
def test_regular_expressions_match_from_end_to_end(pattern: str, whole: set[str] | str) -> None:
    if isinstance(whole, str):
        with pytest.raises(FieldError, match=whole):
            make_grammar(Structure(regex=pattern), None)
    else:
        grammar = make_grammar(Structure(regex=pattern), None)
        assert {walk(grammar, seed) for seed in range(30)} == whole


LEAVES = st.sampled_from(
    [COUNT, LETTER, {"type": "boolean"}, {"type": "null"}, {"const": "é"}, {"enum": [1, "a", None, [2]]}]
)
BESIDE: dict[str, Any] = {  # what may stand in any schema, heeded or not
    "title": "t",
    "minimum": 2,
    "maxLength": 2,
    "maxItems": 1,
    "uniqueItems": True,
    "minProperties": 1,
    "exclusiveMaximum": 7,
    "multipleOf": 3,
    "not": {"type": "null"},
    "required": ["a"],
    "contains": {"type": "null"},
    "propertyNames": {"maxLength": 1},
    "dependentRequired": {"a": ["b"]},
    "if": {"type": "object"},
    "then": {"required": ["b"]},
    "unevaluatedProperties": False,
    "format": "date",
}
MORE = st.dictionaries(st.sampled_from([*BESIDE]), st.none(), max_size=2).map(
    lambda chosen: {name: BESIDE[name] for name in chosen}
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    some = st.lists(inner, min_size=1, max_size=2)
    made = st.one_of(
        properties.map(lambda found: closed(**found)),
        properties.map(lambda found: {"type": "object", "properties": found, "additionalProperties": False}),
        inner.map(lambda found: {"type": "array", "items": found, "maxItems": 2}),
        st.builds(lambda name, found: {name: found}, st.sampled_from(["anyOf", "oneOf", "allOf"]), some),
    )
    return st.builds(lambda schema, more: {**schema, **more}, made, MORE)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.recursive(st.builds(lambda schema, more: {**schema, **more}, LEAVES, MORE), larger, max_leaves=5))
def test_any_schema_is_kept_to_or_refused(schema: dict[str, Any]) -> None:
    with suppress(FieldError):
        assert_valid(schema, answers(schema, 3))
