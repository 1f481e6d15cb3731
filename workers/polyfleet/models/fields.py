"""Reading typed values out of the untyped metadata of a model file; every complaint names file, key and reason."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfleet.models.errors import ModelFileError

MAX_NUMBER = 1e300


@dataclass(frozen=True, slots=True)
class Fields:
    """A view of a file's key-value metadata. Methods raise ModelFileError for a missing or unusable value.

    `read` has the keys that were asked for: what a reader asks for it understands. `prefix` stands before every key.
    """

    path: str
    values: Mapping[str, Any]
    prefix: str = ""
    read: set[str] = field(default_factory=set, compare=False)

    def error(self, reason: str) -> ModelFileError:
        """The error to raise about this file."""
        return ModelFileError(f"{self.path}: {reason}")

    def under(self, prefix: str) -> "Fields":
        """The same with keys that leave out `prefix`."""
        return Fields(self.path, self.values, self.prefix + prefix, self.read)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(self.prefix + key) is not None

    def count(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        """A whole number within bounds."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{self.prefix}{key} must be a whole number, not {value!r}")
        if not minimum <= value <= maximum:
            raise self.error(f"{self.prefix}{key} must be {minimum} to {maximum}, not {value}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number over 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{self.prefix}{key} must be a number, not {value!r}")
        if not 0 < value <= MAX_NUMBER:
            raise self.error(f"{self.prefix}{key} must be a finite number over 0, not {value}")
        return float(value)

    @contextmanager
    def in_range(self) -> Iterator[None]:
        """Around what computes with the fields: numbers that no computation stands are the file's fault."""
        try:
            yield
        except (ArithmeticError, MemoryError) as error:
            raise self.error(f"its numbers are out of range ({type(error).__name__})") from None

    def number(self, key: str, low: float, high: float, *, open_low: bool = False) -> float:
        """A finite number from `low` to `high`, or over `low` when `open_low`."""
        value = self._value(key, None)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{self.prefix}{key} must be a number, not {value!r}")
        if not low <= value <= high or (open_low and value == low):
            bound = f"over {low:g} up to {high:g}" if open_low else f"from {low:g} to {high:g}"
            raise self.error(f"{self.prefix}{key} must be {bound}, not {value}")
        return float(value)

    def token_ids(self, key: str) -> list[int]:
        """One token id or a list of them; none when the key is missing."""
        value = self._found(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
            raise self.error(f"{self.prefix}{key} must be a whole number or a list of them, not {value!r}")
        return ids

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(f"{self.prefix}{key} must be a string, not {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{self.prefix}{key} must be true or false, not {value!r}")
        return value

    def items(self, key: str) -> list[Any]:
        """A list."""
        value = self._value(key, None)
        if not isinstance(value, list):
            raise self.error(f"{self.prefix}{key} must be a list")
        return value

    def section(self, key: str) -> "Fields":
        """A nested mapping; its keys are reported as `key.name`."""
        value = self._value(key, None)
        if not isinstance(value, Mapping):
            raise self.error(f"{self.prefix}{key} must be an object, not {value!r}")
        return Fields(f"{self.path}: {self.prefix}{key}", value)

    def sections(self, key: str) -> list["Fields"]:
        """A list of nested mappings; their keys are reported as `key[number].name`."""
        named = Fields(self.path, {f"{key}[{number}]": each for number, each in enumerate(self.items(key))})
        return [named.section(name) for name in named.values]

    def _found(self, key: str) -> Any:
        self.read.add(self.prefix + key)
        return self.values.get(self.prefix + key)

    def _value(self, key: str, default: Any) -> Any:
        value = self._found(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{self.prefix}{key} is missing")
        return value


def read_json(path: Path, kind: type = dict) -> Fields:
    """A JSON object from a file, or with `list` an array under the key ""; raises ModelFileError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not valid JSON ({error})") from None
    if not isinstance(values, kind):
        raise ModelFileError(f"{path}: must hold a JSON {'object' if kind is dict else 'array'}")
    return Fields(str(path), values if isinstance(values, dict) else {"": values})


def read_optional_json(path: Path) -> Fields:
    """As `read_json`, without any field when there is no such file."""
    return read_json(path) if path.is_file() else Fields(str(path), {})
