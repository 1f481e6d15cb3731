"""Chat templates: jinja2 in a sandbox, with the helpers and settings that model files expect of `transformers`.

A template comes out of a model file, so it is treated as foreign: no attribute of Python's internals, no change of
what it is given, no huge numbers or repetitions, and output up to a limit.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from polyfleet.text.errors import TextAssetsError
from polyfleet.wire.limits import FieldError

MAX_CHARACTERS = 16 * 1024 * 1024
MAX_BITS = 4096  # of an integer


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, unless the result would be huge."""
        if isinstance(left, int) and isinstance(right, int):
            size = left.bit_length()
            if (size * right if operator == "**" else size + right.bit_length()) > MAX_BITS:
                raise SecurityError("a number is too large")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, (str, list, tuple)) and len(many) * times > MAX_CHARACTERS:
                    raise SecurityError("a repetition is too long")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format_string: str) -> str:
    return datetime.now().strftime(format_string)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON without jinja2's escapes for HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """One compiled template. Raises TextAssetsError when it is no valid jinja2."""

    def __init__(self, source: str, bos_token: str | None, eos_token: str | None) -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TextAssetsError(f"The model's chat template is not valid: {error}.") from None

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt that ends where the assistant's answer begins. Raises FieldError on `messages`."""
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(
                messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **self._special
            ):
                length += len(piece)
                if length > MAX_CHARACTERS:
                    raise SecurityError(f"its output is longer than {MAX_CHARACTERS} characters")
                pieces.append(piece)
        except Exception as error:  # a template may fail in any way that Python code can
            raise FieldError("messages", f"the model's chat template refuses them: {error}") from None
        return "".join(pieces)
