"""JSON that callers send as text within their requests."""

import json
from typing import Any

from polyfleet.wire.limits import FieldError

MAX_DEPTH = 100


def read_object(text: str, field: str) -> dict[str, Any]:
    """The object that the text holds. Raises FieldError: also for what is nested too deeply to be worked with."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        too_deep = _depth(value) > MAX_DEPTH
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise FieldError(field, f"is no valid JSON ({error})"[:200]) from None
    if too_deep:
        raise FieldError(field, f"is nested more than {MAX_DEPTH} levels deep")
    if not isinstance(value, dict):
        raise FieldError(field, "must be a JSON object")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _depth(value: Any) -> int:
    """How deeply objects and lists are nested, by levels, so that no depth is too much for it."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, (dict, list))]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth
