"""W3C Trace Context: what is valid goes on as it came, what is not counts as none."""

import pytest

from polyfleet.wire.tracing import MAX_STATE_CHARACTERS, TraceContext, trace_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_context_goes_on_as_it_came() -> None:
    assert trace_context([f" {PARENT} "], ["a=1 ", "", "b=2"]) == TraceContext(PARENT, "a=1,b=2", TRACE, SPAN)
    assert trace_context([PARENT], []) == TraceContext(PARENT, "", TRACE, SPAN)


@pytest.mark.parametrize("parent", [f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-and-more"])
def test_later_versions_are_read_as_far_as_they_are_known(parent: str) -> None:
    assert trace_context([parent], ["a=1"]) == TraceContext(parent, "a=1", TRACE, SPAN)


@pytest.mark.parametrize(
    "parents",
    [
        [],
        [""],
        ["nonsense"],
        [PARENT, PARENT],
        [PARENT.upper()],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-01-more"],
        [f"00-{TRACE}-{SPAN}-1"],
        [f"00-{TRACE[:-1]}-{SPAN}-01"],
        [f"01-{TRACE}-{SPAN}-01-{'x' * MAX_STATE_CHARACTERS}"],
        [f"{PARENT}\n"[:-3] + "\n01"],
    ],
)
def test_what_is_not_valid_is_none(parents: list[str]) -> None:
    assert trace_context(parents, ["a=1"]) is None


@pytest.mark.parametrize("state", ["a=" + "x" * MAX_STATE_CHARACTERS, "a=é", "a=\x01"])
def test_a_state_that_nobody_has_to_pass_on_is_left_out(state: str) -> None:
    assert trace_context([PARENT], [state]) == TraceContext(PARENT, "", TRACE, SPAN)
