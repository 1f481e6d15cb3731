"""Grammars of answers: whatever a model would draw, what comes out is what was asked for; what can't be had is told."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.support.text_assets import assets_document, byte_level_tokenizer

from polyfleet.sampling.grammar import Grammars
from polyfleet.sampling.masks import all_tokens
from polyfleet.text.answer.channels import ChannelParser
from polyfleet.text.answer.formats import FORMATS
from polyfleet.text.answer.parser import AnswerParser
from polyfleet.text.grammar import Calls, make_grammar
from polyfleet.text.model_text import ModelText
from polyfleet.wire.limits import FieldError
from polyfleet.wire.structure import Structure
from polyfleet.wire.tools import read_tools

END = 2
VOCABULARY = byte_level_tokenizer().get_vocab_size()
TEXT = ModelText(assets_document())
GRAMMARS = Grammars(assets_document(), VOCABULARY, [END])
POINT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "x": {"type": "integer", "minimum": -5, "maximum": 5},
        "tags": {"type": "array", "items": {"enum": ["a", "é", 3, None]}, "maxItems": 2},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]},
    },
    "required": ["name", "x", "tags", "next"],
    "additionalProperties": False,
    "$defs": {"leaf": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}},
}
POINT["$defs"]["leaf"]["additionalProperties"] = False  # type: ignore[index]
TOOL = {
    "type": "function",
    "function": {
        "name": "move",
        "strict": True,
        "parameters": {"properties": {"to": {"enum": ["N", "S"]}}, "required": ["to"], "additionalProperties": False},
    },
}
OTHER = {"type": "function", "function": {"name": "a-b"}}
TOOLS = (json.dumps(TOOL), json.dumps(OTHER))


def walk(grammar: str, seed: int, most: int = 400) -> str:
    """An answer of a model that draws anything that it may; empty where it does not end."""
    source, mask, ids = random.Random(seed), GRAMMARS.mask(grammar), list[int]()
    while len(ids) < most:
        bits = all_tokens(VOCABULARY)
        mask.fill(ids, bits)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCABULARY])
        token = END if END in allowed and source.random() < 0.5 else source.choice(allowed.tolist())
        if token == END:
            return TEXT.decode(ids)
        ids.append(token)
    return ""


def matches(schema: Any) -> Callable[[str], bool]:
    return lambda text: jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))


@pytest.mark.parametrize(
    ("structure", "good"),
    [
        (Structure(json_schema=json.dumps(POINT)), matches(POINT)),
        (Structure(json_schema='{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}'), None),
        (
            Structure(json_schema='{"type": "string", "pattern": "^[a-c]{2,4}$"}'),
            lambda t: re.fullmatch('"[a-c]{2,4}"', t),
        ),
        (Structure(regex=r"^(\d{2}|[a-f]+x)/[^\n]$"), lambda text: re.fullmatch(r"([0-9]{2}|[a-f]+x)/[^\n]", text)),
        (Structure(choices=("yes", 'n"o\n', "né")), lambda text: text in ("yes", 'n"o\n', "né")),
        (Structure(grammar='start: "a" b\nb: /[0-9]{1,3}/ "!"'), lambda text: re.fullmatch("a[0-9]{1,3}!", text)),
        (Structure(grammar='root ::= ("yes" | "no") [0-9]? "."'), lambda text: re.fullmatch(r"(yes|no)[0-9]?\.", text)),
    ],
)
def test_whatever_is_drawn_is_what_was_asked_for(structure: Structure, good: Any) -> None:
    structure.check()
    good = good or matches(json.loads(structure.json_schema or ""))
    grammar = make_grammar(structure, None)
    answers = [answer for seed in range(12) if (answer := walk(grammar, seed))]
    assert len(answers) > 5
    assert all(map(good, answers)), answers


def test_thoughts_come_before_what_was_asked_for() -> None:
    grammar = make_grammar(Structure(choices=("yes", "no")), None, "</think>")
    mask = GRAMMARS.mask(grammar)
    for thought in ("", "Hm, yes. No!\n\n"):
        ids = TEXT.encode(f"{thought}</think>\n\nyes")
        bits = all_tokens(VOCABULARY)
        GRAMMARS.mask(grammar).fill(ids, bits)
        assert np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCABULARY]).tolist() == [END]
    bits = all_tokens(VOCABULARY)
    mask.fill(TEXT.encode("yes"), bits)
    assert not bits[0] >> END & 1


@pytest.mark.parametrize("several", [True, False])
def test_required_calls_are_calls(several: bool) -> None:
    grammar = make_grammar(None, Calls(TOOLS, (), True, several))
    tools, found = read_tools(TOOLS), 0
    for seed in range(8):
        if not (answer := walk(grammar, seed)):
            continue
        parser = AnswerParser(FORMATS["llama"], tools, None)
        parts = [parser.add(answer), parser.finish(truncated=False)]
        calls = [delta for part in parts for delta in part.tool_calls if delta.name]
        assert "".join(part.text for part in parts) == ""
        assert 1 <= len(calls) <= (16 if several else 1)
        found += 1
        for call in calls:
            if call.name == "move":
                assert json.loads(call.arguments) in ({"to": "N"}, {"to": "S"})
    assert found > 4


def test_one_tool_may_be_named() -> None:
    grammar = make_grammar(None, Calls(TOOLS, ("move",), True, False))
    assert {walk(grammar, seed) for seed in range(6)} == {
        f'{{"name": "move", "arguments": {{"to": "{to}"}}}}' for to in ("N", "S")
    }


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('Hm.<tool_call>\n{"name": "move", "arguments": {"to": "N"}}\n</tool_call> Done', True),
        ('<tool_call>\n{"name": "a-b", "arguments": {"any": [1]}}\n</tool_call>', True),
        ("Hm, <tool>", True),
        ('<tool_call>\n{"name": "move", "arguments": {"to": "W"', False),
        ('<tool_call>\n{"name": "stay"', False),
    ],
)
def test_strict_calls_within_text(text: str, taken: bool) -> None:
    hermes = FORMATS["hermes"]
    calls = Calls(TOOLS, opening=hermes.openings[0], closing=hermes.closing, spellings=hermes.spellings)
    mask = GRAMMARS.mask(make_grammar(None, calls))
    if taken:
        mask.fill(TEXT.encode(text), all_tokens(VOCABULARY))
    else:
        with pytest.raises(ValueError, match="can't be gone on with"):
            mask.fill(TEXT.encode(text), all_tokens(VOCABULARY))


@pytest.mark.parametrize("family", [name for name, form in FORMATS.items() if form.spellings and name != "hermes"])
def test_strict_calls_behind_special_tokens(family: str) -> None:
    form = FORMATS[family]
    opening, closing = "<|im_start|>", "<|endoftext|>" if form.closing else ""
    special = (("<|im_start|>", 1), ("<|endoftext|>", 0))
    calls = Calls(TOOLS, opening=opening, closing=closing, spellings=form.spellings)
    grammar = make_grammar(None, calls, special=special)
    for spelling in form.spellings:
        call = spelling.replace("$N", "move").replace("$J", '"move"').replace("$D", "12").replace("$A", '{"to": "N"}')
        good = [*TEXT.encode("Hm."), 1, *TEXT.encode(call), *([0] if closing else [])]
        mask = GRAMMARS.mask(grammar)
        mask.fill(good, all_tokens(VOCABULARY))
        mask.fill([*good, *TEXT.encode(" Done")], all_tokens(VOCABULARY))
        wrong = TEXT.encode(call.replace('"N"', '"W"'))
        with pytest.raises(ValueError, match="can't be gone on with"):
            GRAMMARS.mask(grammar).fill([1, *wrong], all_tokens(VOCABULARY))
        parser = AnswerParser(form, read_tools(TOOLS), None)
        parsed = parser.add(f"{form.openings[0]}{call}{form.closing}"), parser.finish(truncated=False)
        assert [each.name for part in parsed for each in part.tool_calls if each.name] == ["move"]


def test_thoughts_may_end_with_a_special_token() -> None:
    grammar = make_grammar(Structure(choices=("yes",)), None, "<|im_start|>", (("<|im_start|>", 1),))
    bits = all_tokens(VOCABULARY)
    GRAMMARS.mask(grammar).fill([*TEXT.encode("Hm"), 1, *TEXT.encode("\nyes")], bits)
    assert np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCABULARY]).tolist() == [END]


HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>")
THOUGHT = "<|channel|>analysis<|message|>Hm, so.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        ('<|channel|>commentary to=functions.move <|constrain|>json<|message|>{"to": "N"}', True),
        (f'{THOUGHT}<|channel|>commentary to=functions.move <|constrain|>json<|message|>{{"to": "N"}}', True),
        (f"{THOUGHT}<|channel|>final<|message|>yes", True),
        ("<|channel|>final<|message|>yes", True),
        ('<|channel|>commentary to=functions.move <|constrain|>json<|message|>{"to": "W"', False),
        (f"{THOUGHT}<|channel|>final<|message|>no", False),
        ("yes", False),
        ('{"name": "move"', False),
    ],
)
def test_structures_and_calls_in_channels(answer: str, taken: bool) -> None:
    """Marks are text to this tokenizer; what special tokens are is told by their ids, as elsewhere."""
    calls = Calls(TOOLS, ("move",), several=False)
    grammar = make_grammar(Structure(choices=("yes",)), calls, channels=True)
    bits = all_tokens(VOCABULARY)
    if not taken:
        with pytest.raises(ValueError, match="can't be gone on with"):
            GRAMMARS.mask(grammar).fill(TEXT.encode(answer), bits)
        return
    GRAMMARS.mask(grammar).fill(TEXT.encode(answer), bits)
    assert np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCABULARY]).tolist() == [END]
    parser = ChannelParser(read_tools(TOOLS), bare=True)
    parts = [parser.add(answer), parser.finish(truncated=False)]
    called = [each.name for part in parts for each in part.tool_calls if each.name]
    said, thought = ("".join(getattr(part, name) for part in parts) for name in ("text", "reasoning"))
    assert (called, said) == ((["move"], "") if "commentary" in answer else ([], "yes"))
    assert thought == ("Hm, so." if THOUGHT in answer else "")


def test_marks_of_channels_may_be_special_tokens() -> None:
    special = tuple((mark, number) for number, mark in enumerate(HARMONY_MARKS[:2]))
    grammar = make_grammar(None, Calls(TOOLS, ("move",), True), special=special, channels=True)
    ids = [0, *TEXT.encode("commentary to=functions.move <|constrain|>json"), 1, *TEXT.encode('{"to": "N"}')]
    GRAMMARS.mask(grammar).fill(ids, all_tokens(VOCABULARY))
    with pytest.raises(ValueError, match="can't be gone on with"):
        GRAMMARS.mask(grammar).fill(TEXT.encode("<|channel|>"), all_tokens(VOCABULARY))


def test_a_structure_or_calls() -> None:
    grammar = make_grammar(Structure(choices=("yes",)), Calls(TOOLS, ("move",), several=False))
    answers = {walk(grammar, seed) for seed in range(12)}
    assert "yes" in answers
    assert answers - {"yes"} <= {f'{{"name": "move", "arguments": {{"to": "{to}"}}}}' for to in ("N", "S")}


@pytest.mark.parametrize(
    ("structure", "field", "problem"),
    [
        (Structure(json_schema="["), "structure.json_schema", "no valid JSON"),
        (Structure(json_schema="[]"), "structure.json_schema", "must be a JSON object"),
        (Structure(json_schema='{"a":' * 200 + "1" + "}" * 200), "structure.json_schema", "nested more than 100"),
        (Structure(json_schema='{"type": "integer", "minimum": 5, "maximum": 3}'), "structure", "greater than maximum"),
        (
            Structure(json_schema='{"type": "object", "properties": {"a": false}, "required": ["a"]}'),
            "structure",
            "'a' is unsatisfiable",
        ),
        (Structure(json_schema='{"type": "strin"}'), "structure", "Invalid type: strin"),
        (Structure(json_schema='{"not": {"type": "string"}}'), "structure", "Unimplemented keys"),
        (Structure(json_schema='{"$ref": "http://127.0.0.1/x"}'), "structure", "does not fetch"),
        (Structure(json_schema='{"$ref": "#"}'), "structure", "leaves no text"),
        (
            Structure(
                json_schema='{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'
            ),
            "structure",
            "leaves no text",
        ),
        (Structure(grammar="start: start"), "structure", "leaves no text"),
        (Structure(regex="(a{1000}){1000}"), "structure", "takes too long|too many"),
        (Structure(regex="(" * 2000 + "a" + ")" * 2000), "structure", "nested parentheses"),
        (Structure(regex="(a"), "structure", "unclosed group"),
        (Structure(regex="(?=a)b"), "structure", "look-around"),
        (Structure(grammar='start: "a" | foo'), "structure", "unknown name"),
        (Structure(grammar="root ::= ("), "structure.grammar", "no valid GBNF"),
    ],
)
def test_what_can_not_be_had_is_told_in_a_sentence(structure: Structure, field: str, problem: str) -> None:
    structure.check()
    with pytest.raises(FieldError, match=problem) as caught:
        make_grammar(structure, None)
    assert caught.value.field == field
    assert "\n" not in caught.value.problem
    assert len(caught.value.problem) < 250


def test_a_tools_bad_schema_is_named() -> None:
    bad = json.dumps(
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}}}
    )
    with pytest.raises(FieldError, match="Invalid type: x") as caught:
        make_grammar(None, Calls((TOOLS[0], bad), required=True))
    assert caught.value.field == "tools[1].function.parameters"


@pytest.mark.parametrize(
    ("structure", "field"),
    [
        (Structure(), "structure"),
        (Structure(regex="a", json_object=True), "structure.json_object"),
        (Structure(regex="a" * 70_000), "structure.regex"),
        (Structure(choices=("",)), "structure.choices"),
        (Structure(choices=("a",) * 1025), "structure.choices"),
    ],
)
def test_exactly_one_within_limits(structure: Structure, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        structure.check()
    assert caught.value.field == field
