"""Chat templates: jinja2 in a sandbox, with the helpers and settings that model files expect of `transformers`.

A template comes out of a model file, so it is treated as foreign: no attribute of Python's internals, no change of
what it is given, no huge numbers or repetitions, and output up to a limit. Those limits make good messages; what bounds
its time and memory for real is the process that it runs in (polyfleet.text.process).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_replace
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from polyfleet.text.errors import TextAssetsError
from polyfleet.text.shield import Shield
from polyfleet.wire.limits import FieldError

MAX_SOURCE = 256 * 1024
MAX_CHARACTERS = 16 * 1024 * 1024
MAX_BITS = 4096  # of an integer
MAX_REASON = 500  # characters of a template's own words in an error
COMPARISONS = {"in": ("is_in", False), "notin": ("is_in", True), "eq": ("is_same", False), "ne": ("is_same", True)}


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Comparisons(NodeTransformer):
    """Comparisons become calls of the shield's: a template must not see that contents hold stand-ins."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        """`a in b`, `a not in b`, `a == b` and `a != b`; others stay."""
        self.generic_visit(node)
        if len(node.ops) != 1 or node.ops[0].op not in COMPARISONS:
            return node
        name, negated = COMPARISONS[node.ops[0].op]
        function = nodes.EnvironmentAttribute(name, lineno=node.lineno)
        call = nodes.Call(function, [node.expr, node.ops[0].expr], [], None, None, lineno=node.lineno)
        return nodes.Not(call, lineno=node.lineno) if negated else call


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, shield: Shield) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag], finalize=self._finalize
        )
        self._shield = shield
        self.is_in, self.is_same = shield.is_in, shield.is_same
        self.tests |= dict.fromkeys(("eq", "==", "equalto"), shield.is_same) | {"in": shield.is_in}
        self.tests |= dict.fromkeys(("ne", "!="), lambda left, right: not shield.is_same(left, right))
        self.filters["tojson"] = self._to_json
        self.filters["replace"] = self._replace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Comparisons().visit(super()._parse(source, name, filename))
        return template

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """`function(…)`; a method of contents finds what the template spells."""
        text = getattr(function, "__self__", None)
        if isinstance(text, str):
            args = self._shield.arguments(function.__name__, text, args)
        return super().call(context, function, *args, **kwargs)

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

    def _finalize(self, value: Any) -> Any:
        return self._shield.spelled(value) if isinstance(value, (dict, list, tuple)) else value

    def _to_json(self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        """JSON without jinja2's escapes for HTML, which models were not trained on."""
        text = json.dumps(value, ensure_ascii=False, indent=indent, **options)
        return self._shield.escape(text) if ensure_ascii else text

    @jinja2.pass_eval_context
    def _replace(self, context: Any, text: str, old: str, new: str, count: int | None = None) -> str:
        old, new = self._shield.arguments("replace", str(text), (old, new))
        return do_replace(context, text, old, new, count)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format_string: str) -> str:
    return datetime.now().strftime(format_string)


class ChatTemplate:
    """One compiled template. `special` are variables beside the messages. Raises TextAssetsError when it is invalid."""

    def __init__(self, source: str, special: Mapping[str, str], shield: Shield) -> None:
        self._special = special
        self._shield = shield
        if len(source) > MAX_SOURCE:
            raise TextAssetsError(f"The model's chat template is longer than {MAX_SOURCE} characters.")
        try:
            self._template = _Sandbox(shield).from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise TextAssetsError(f"The model's chat template is not valid: {error}.") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **arguments: Any,
    ) -> str:
        """The prompt, up to where the assistant's answer begins unless told otherwise. Raises FieldError.

        `arguments` are more variables of the template.
        """
        pieces: list[str] = []
        length = 0
        values = {"documents": None, "add_generation_prompt": add_generation_prompt, **self._special, **arguments}
        values |= {"messages": list(messages), "tools": tools}
        try:
            for piece in self._template.generate(**values):
                length += len(piece)
                if length > MAX_CHARACTERS:
                    raise SecurityError(f"its output is longer than {MAX_CHARACTERS} characters")
                pieces.append(piece)
        except MemoryError:
            raise FieldError("messages", "the model's chat template took too much memory") from None
        except Exception as error:  # a template may fail in any way that Python code can
            reason = self._shield.show(str(error)[:MAX_REASON])
            raise FieldError("messages", f"the model's chat template refuses them: {reason}") from None
        return "".join(pieces)
