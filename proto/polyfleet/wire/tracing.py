"""W3C Trace Context: which distributed trace a request belongs to. Passed on as it came; no spans are made here.

https://www.w3.org/TR/trace-context/: a `traceparent` that is not valid counts as none, and its `tracestate` with it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"  # HTTP headers and gRPC metadata
MAX_STATE_CHARACTERS = 512  # as much as everybody has to pass on; longer ones are dropped whole
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """`parent` and `state` as they came; `trace_id` and `span_id` (of the caller) are read from `parent`."""

    parent: str
    state: str
    trace_id: str
    span_id: str


def trace_context(parents: Sequence[str], states: Sequence[str]) -> TraceContext | None:
    """From the values of the two headers, which may come several times; None without one valid `traceparent`."""
    parent = parents[0].strip() if len(parents) == 1 else ""
    match = _PARENT.fullmatch(parent)
    if match is None or len(parent) > MAX_STATE_CHARACTERS or (match[1] == "00" and match[4] is not None):
        return None
    state = ",".join(each.strip() for each in states if each.strip())
    usable = len(state) <= MAX_STATE_CHARACTERS and state.isascii() and state.isprintable()
    return TraceContext(parent, state if usable else "", match[2], match[3])
