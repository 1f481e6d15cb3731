"""The one YAML file of a fleet: a section for each process, read and overlaid in the same way by all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from polyfleet.wire.config import ConfigError

# What the decoder raises for a document that is none: besides its own error those of dates, numbers and tags.
UNREADABLE = (ValueError, AttributeError, KeyError)
_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)


def read_config(path: Path, sections: type[_T], decode: Callable[[type, Any], Any] | None = None) -> _T:
    """The file as `sections` says, whose fields all have defaults: an empty file or section is all defaults.

    `decode` makes values of types that msgspec does not know; what it raises as ValueError is wrong with the file.
    Raises ConfigError that names the file, the key and what is wrong with it.
    """
    try:
        found = msgspec.yaml.decode(document) if (document := path.read_bytes()).strip() else None
        given = {key: value for key, value in found.items() if value is not None} if isinstance(found, dict) else found
        return msgspec.convert({} if given is None else given, sections, dec_hook=decode)
    except OSError as error:
        raise ConfigError(f"The configuration {path} can't be read: {error.strerror}.") from None
    except UNREADABLE as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"The configuration {path} is not valid: {problem}.") from None


def overlaid(section: _S, **overrides: object) -> _S:
    """The section with those overrides that are not None in place of its own values."""
    return msgspec.structs.replace(section, **{key: value for key, value in overrides.items() if value is not None})
