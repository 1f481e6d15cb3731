"""The one YAML file of a fleet: a section for each process, read and overlaid in the same way by all of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from polyfleet.process.config import ConfigError

_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)


def read_config(path: Path, sections: type[_T], decode: Callable[[type, Any], Any] | None = None) -> _T:
    """The file as `sections` says, whose fields all have defaults: an empty file or section is all defaults.

    `decode` makes values of types that msgspec does not know; what it raises as ValueError is wrong with the file.
    Raises ConfigError that names the file, the key and what is wrong with it.
    """
    with reading("The configuration", path):
        found = _Loader(path.read_bytes()).get_single_data()
        given = {key: value for key, value in found.items() if value is not None} if isinstance(found, dict) else found
        return msgspec.convert({} if given is None else given, sections, dec_hook=decode)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe one, which would let the last of equal keys win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """Raises ValueError where a key is given twice; one that comes with `<<` too is overridden."""
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise ValueError(f"`{key.value}` is given twice, again in line {key.start_mark.line + 1}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


@contextmanager
def reading(what: str, path: Path) -> Iterator[None]:
    """Around the reading of a file of ours: ConfigError says of `what` at `path` why it can't be read or is not valid.

    Besides msgspec's own error, the decoder raises those of dates, numbers and tags that are none.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{what} {path} can't be read: {error.strerror}.") from None
    except (ValueError, AttributeError, KeyError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"{what} {path} is not valid: {problem}.") from None


def overlaid(section: _S, **overrides: object) -> _S:
    """The section with those overrides that are not None in place of its own values."""
    return msgspec.structs.replace(section, **{key: value for key, value in overrides.items() if value is not None})
