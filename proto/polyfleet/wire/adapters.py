"""Names of adapters, and lists of them, wherever they come in."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import OptionValue

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SEPARATOR = ":"  # between a model's name and its adapter's
MOST_LISTED = 1024
MAX_SOURCE = 4096


class Named(Protocol):
    """A `polyfleet.v1.Adapter`, or what a file says of one."""

    @property
    def name(self) -> str:
        """That requests name it by."""
        ...

    @property
    def source(self) -> str:
        """Its folder."""
        ...


def check_adapter(field: str, adapter: Named) -> None:
    """Raise FieldError for a name or source that no adapter has."""
    if not NAME.fullmatch(adapter.name):
        rule = "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit"
        raise FieldError(f"{field}.name", f"must be {rule}, not {adapter.name!r:.80}")
    source = adapter.source
    if not source.strip() or len(source) > MAX_SOURCE or not source.isprintable():
        raise FieldError(f"{field}.source", "must be the path of a PEFT folder")


def check_adapters(adapters: Sequence[Named], field: str = "adapters") -> None:
    """Raise FieldError for the first that no list may have."""
    if len(adapters) > MOST_LISTED:
        raise FieldError(field, f"must be at most {MOST_LISTED}, not {len(adapters)}")
    for number, adapter in enumerate(adapters):
        check_adapter(f"{field}[{number}]", adapter)
    if twice := repeated(each.name for each in adapters):
        raise FieldError(field, f"has {twice!r} twice")


def with_room(options: Mapping[str, OptionValue], count: int) -> dict[str, OptionValue]:
    """The options with room for so many adapters, where they do not say for how many."""
    return {"max_adapters": count, **options} if count else dict(options)


def repeated(names: Iterable[str]) -> str:
    """The first name that was there before; empty where none was."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
