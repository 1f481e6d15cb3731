"""The declared options as flags of a click command, and the types of flags that commands share."""

import math
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

import click

from polyfleet.wire.limits import REQUEST_ID, FieldError
from polyfleet.wire.options import OPTIONS, Option, OptionValue, checked

_F = TypeVar("_F", bound=Callable[..., Any])


class OptionType(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """A value of one option, from a command line's text or a file's value; what is refused is so as everywhere else."""

    def __init__(self, option: Option) -> None:
        self._option = option
        self.name = {bool: "true|false", int: "number", float: "number", str: "name"}[option.kind]
        if option.choices:
            self.name = "|".join(option.choices)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """As `--help` shows it."""
        return self.name if self._option.choices or self._option.kind is bool else self.name.upper()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OptionValue:
        """The value; fails with the option's limit for any other."""
        try:
            return self._option.parse(value) if isinstance(value, str) else self._option.check(value)
        except FieldError as error:
            self.fail(f"{error.problem}.", param, ctx)


class FiniteRange(click.FloatRange):
    """click's FloatRange lets nan pass; this one does not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, in range and finite."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


class WorkerId(click.ParamType):  # type: ignore[type-arg]
    """What the fleet calls a worker, and would refuse otherwise once that has loaded its model."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text itself when it is an id."""
        if not REQUEST_ID.fullmatch(str(value)):
            self.fail(f"{value!r:.150} is not 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'.", param, ctx)
        return str(value)


def option_flags(note: str = "") -> Callable[[_F], _F]:
    """Give a command a flag for each option, None where it is not given; `note` ends each one's help."""

    def add(command: _F) -> _F:
        for option in reversed(list(OPTIONS.values())):
            text = f"{option.help}  {note}" if note else option.help
            command = click.option(option.flag, option.name, type=OptionType(option), help=text)(command)
        return command

    return add


class AdapterType(click.ParamType):  # type: ignore[type-arg]
    """NAME=PATH."""

    name = "NAME=PATH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Name and path."""
        name, _, path = str(value).partition("=")
        if not name or not path:
            self.fail(f"{value!r:.80} is not NAME=PATH.", param, ctx)
        return name, path


def adapter_flag() -> Callable[[_F], _F]:
    """Give a command the flag of adapters: (name, path) of each."""
    text = "LoRA adapter (a PEFT folder) that it serves under this name from the start; repeat it."
    return click.option("--adapter", type=AdapterType(), multiple=True, metavar="NAME=PATH", help=text)


def take_options(flags: MutableMapping[str, Any]) -> dict[str, OptionValue]:
    """Remove the options from a command's flags, and keep those that were given, which must go together."""
    taken = {name: flags.pop(name) for name in OPTIONS}
    try:
        return checked({name: value for name, value in taken.items() if value is not None})
    except FieldError as error:
        raise click.UsageError(f"{error}.") from None
