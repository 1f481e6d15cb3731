"""Grammars of answers, as llguidance takes them: of a structure that is asked for, and of calls that are."""

import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from polyfleet.wire.json_text import read_object
from polyfleet.wire.limits import FieldError
from polyfleet.wire.structure import GRAMMAR_LIMITS, Structure
from polyfleet.wire.tools import Tool, read_tools

# A model that may write white space where it likes may do so for ever.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_MOST_CALLS = 16
TRIAL_BYTES, TRIAL_SECONDS = 24, 1.0  # of an answer, and of processor time
_MOST_SHOWN = 200
_BARE_CALL = ('{"name": $J, "arguments": $A}',)
_CHANNEL_CALL = ("<|channel|>commentary to=functions.$N <|constrain|>json<|message|>$A",)
_TEXT = r"/(.|\n)*/"
_SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])")
Special = Sequence[tuple[str, int]]  # spellings and ids of special tokens


@dataclass(frozen=True, slots=True)
class Calls:
    """What an answer may call: `tools` are JSON, `names` as in GenerateRequest.

    `required`: it has to begin with a call, and holds nothing else (`several`: of one call or more). Else calls stand
    behind `opening`, within any text (or, with a structure, in its place, as if they were required), in one of
    `spellings`, as ToolFormat has them.
    """

    tools: tuple[str, ...]
    names: tuple[str, ...] = ()
    required: bool = False
    several: bool = True
    opening: str = ""
    closing: str = ""
    spellings: tuple[str, ...] = ()


def make_grammar(
    structure: Structure | None,
    calls: Calls | None,
    closing_of_thoughts: str = "",
    special: Special = (),
    *,
    channels: bool = False,
) -> str:
    """The grammar of an answer. `closing_of_thoughts`: it begins within thoughts, which end so. `channels`: thoughts,
    calls and what is said are messages in channels, as harmony has them; then one call at most ends an answer.

    `special` are the marks among all that which are special tokens, with their ids: no text spells these.
    Raises FieldError, on `structure` or `tools`, for what can't be had or would take too long.
    """
    parts: dict[str, dict[str, Any]] = {}
    marks, alternatives = dict(special), []
    if structure is not None:
        parts["structure"] = _structure(structure)
        _check("structure", parts["structure"])
        alternatives.append(f"{_channel('final', marks)} @structure" if channels else "@structure")
    rules = ""
    if calls is not None:
        tools = read_tools(calls.tools, calls.names)
        places = {tool.name: place for place, tool in enumerate(read_tools(calls.tools))}
        for index, tool in enumerate(tools):
            parts[f"arguments_{index}"] = _arguments(tool, every=calls.required)
            _check(f"tools[{places[tool.name]}].function.parameters", parts[f"arguments_{index}"])
        rules = _calls(tools, calls, marks, channels=channels, free=not calls.required and structure is None)
        alternatives.append("calls")
    main = f"{_start(closing_of_thoughts, marks, channels=channels)}{rules}\nanswer: {' | '.join(alternatives)}\n"
    grammars = [{"name": "main", "lark_grammar": main}, *({"name": name, **part} for name, part in parts.items())]
    grammar = json.dumps({"grammars": grammars})
    if problem := _problem(grammar):
        raise FieldError("structure" if structure else "tools", problem)
    return grammar


def _structure(structure: Structure) -> dict[str, Any]:
    if structure.json_object:
        return _json(_ANY_OBJECT)
    if structure.json_schema is not None:
        return _json(read_object(structure.json_schema, "structure.json_schema"))
    if structure.regex is not None:
        return _lark(f"start: /{_regex(structure.regex)}/\n")
    if structure.choices:
        return _lark("start: " + " | ".join(map(_quoted, structure.choices)) + "\n")
    return _lark(_as_lark(structure.grammar or ""))


def _regex(pattern: str) -> str:
    """A regular expression between slashes; that it has to match from end to end need not be said."""
    from llguidance import regex_to_lark

    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # which the library would drop
        raise FieldError("structure.regex", "ends with a backslash that escapes nothing")
    found: str = regex_to_lark(pattern, "d")
    return found


def _as_lark(grammar: str) -> str:
    """Lark stays as it is, GBNF is turned into it."""
    if "::=" not in grammar:
        return grammar
    from llguidance import gbnf_to_lark

    try:
        found: str = gbnf_to_lark.gbnf_to_lark(grammar)
    except Exception as error:  # the library raises bare ones
        raise FieldError("structure.grammar", f"is no valid GBNF: {_first(str(error))}") from None
    return found


def _arguments(tool: Tool, *, every: bool) -> dict[str, Any]:
    """Those of a call: by the tool's schema where they have to keep to it."""
    return _json({"type": "object", **tool.parameters} if every or tool.strict else _ANY_OBJECT)


def _calls(tools: Sequence[Tool], calls: Calls, special: Mapping[str, int], *, channels: bool, free: bool) -> str:
    if channels:
        return f"calls: call\n{_call_rules(tools, _CHANNEL_CALL, special)}"
    return _free_calls(tools, calls, special) if free else _bare_calls(tools, several=calls.several)


def _bare_calls(tools: Sequence[Tool], *, several: bool) -> str:
    more = f' ("\\n" call){{0,{_MOST_CALLS - 1}}}' if several else ""
    return f"calls: call{more}\n{_call_rules(tools, _BARE_CALL, {})}"


def _free_calls(tools: Sequence[Tool], calls: Calls, special: Mapping[str, int]) -> str:
    return (
        f"calls: called{'*' if calls.several else '?'} TEXT\nTEXT: {_TEXT}\n"
        f"{_up_to('opened', calls.opening, special)}"
        f"called: opened call {_term(calls.closing, special)}\n{_call_rules(tools, calls.spellings, special)}"
    )


def _start(closing: str, special: Mapping[str, int], *, channels: bool) -> str:
    if channels:
        again = f'{_term("<|start|>", special)} "assistant"'
        message = f"analysis: {_channel('analysis', special)} thoughts {again}\n"
        return f"start: analysis? answer\n{message}{_up_to('thoughts', '<|end|>', special)}"
    return _thoughts(closing, special) if closing else "start: answer\n"


def _channel(name: str, special: Mapping[str, int]) -> str:
    """The header of a message, as terms of a rule."""
    return f'{_term("<|channel|>", special)} "{name}" {_term("<|message|>", special)}'


def _thoughts(closing: str, special: Mapping[str, int]) -> str:
    return f"start: thoughts NEWLINES answer\nNEWLINES: /\\n{{0,2}}/\n{_up_to('thoughts', closing, special)}"


def _up_to(rule: str, mark: str, special: Mapping[str, int]) -> str:
    """A rule of any text up to a mark."""
    return f"{rule}{'' if mark in special else '[lazy]'}: {_TEXT} {_term(mark, special)}\n"


def _call_rules(tools: Sequence[Tool], spellings: Sequence[str], special: Mapping[str, int]) -> str:
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}", "NUMBER: /[0-9]+/"]
    for index, tool in enumerate(tools):
        written = [_spelled(each, tool, index, special) for each in spellings]
        rules.append(f"call_{index}: {' | '.join(written)}")
    return "\n".join(rules) + "\n"


def _spelled(spelling: str, tool: Tool, index: int, special: Mapping[str, int]) -> str:
    """A way to write a call of one tool, as terms of a rule."""
    parts = re.split("|".join(map(re.escape, (*special, "$N", "$J", "$A", "$D"))).join("()"), spelling)
    named = {"$N": tool.name, "$J": json.dumps(tool.name, ensure_ascii=False)}
    known = {"$A": f"@arguments_{index}", "$D": "NUMBER", **{key: _quoted(name) for key, name in named.items()}}
    return " ".join(known.get(part) or _term(part, special) for part in parts if part)


def _term(text: str, special: Mapping[str, int]) -> str:
    """A text, or the special token that is spelled so."""
    return f"<[{special[text]}]>" if text in special else _quoted(text) if text else ""


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"json_schema": {**schema, "x-guidance": _SPACING}}


def _lark(text: str) -> dict[str, Any]:
    return {"lark_grammar": text}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _check(field: str, part: Mapping[str, Any]) -> None:
    grammar = json.dumps({"grammars": [part]})
    names_tokens = "<" in part.get("lark_grammar", "")  # which a tokenizer of bytes has not
    if problem := _problem(grammar) or ("" if names_tokens else _trial(grammar)):
        raise FieldError(field, problem)


@cache
def _limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False, **GRAMMAR_LIMITS)


@cache
def _bytes() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _problem(grammar: str) -> str:
    """What is wrong with a grammar; empty when nothing is."""
    from llguidance import LLMatcher

    problem: str = LLMatcher.validate_grammar(grammar, None, limits=_limits())
    return f"can't be kept to: {_first(problem)}" if problem else ""


def _trial(grammar: str) -> str:
    """What goes wrong where an answer is begun, byte by byte at random; empty when nothing does."""
    from llguidance import LLMatcher

    source, started = random.Random(0), time.thread_time()
    matcher = LLMatcher(_bytes(), grammar, log_level=0, limits=_limits())
    for _ in range(TRIAL_BYTES):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            problem = matcher.get_error()
            return "leaves no text" if "NoExtensionBias" in problem else f"can't be kept to: {_first(problem)}"
        if time.thread_time() - started > TRIAL_SECONDS:
            return "takes too long to keep to"
        following = [byte for byte in range(256) if allowed >> byte & 1]
        if not following:
            break
        matcher.consume_token(source.choice(following))
    return ""


def _first(problem: str) -> str:
    """One sentence of a library's; a second one tells of its own options."""
    lines = [line.strip() for line in problem.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else problem)
    return _SENTENCE_END.split(told.removeprefix("error: "))[0][:_MOST_SHOWN].rstrip(".")
