"""What a model thinks is told apart from what it says and calls, for every pair of tags, wherever its text is cut."""

from typing import Any

import pytest
from tests.unit.text.test_text_answer import cuts, parse

from polyfleet.text.answer.parser import REASONING_TAGS, ReasoningTags, find_reasoning_tags


@pytest.mark.parametrize(
    ("answer", "thinking", "expected"),
    [
        ("<think>\nHm, <tool_call>\n</think>\n\nHello.\n", False, ("Hello.\n", "Hm, <tool_call>", [])),
        ("\n<think>\n\n</think>\n\nHello.", False, ("Hello.", "", [])),
        ("Hm\n</think>Hello.", True, ("Hello.", "Hm", [])),
        ("Hm</thin", True, ("", "Hm</thin", [])),
        (" Hello <think>a</think>", False, (" Hello <think>a</think>", "", [])),
        ('<think>a</think>\n<tool_call>{"name": "time"}</tool_call>', False, ("", "a", [("time", "{}")])),
    ],
)
@pytest.mark.parametrize("tags", REASONING_TAGS, ids=lambda each: each.opening)
def test_thoughts_are_told_apart(answer: str, thinking: bool, expected: Any, tags: ReasoningTags) -> None:
    def spelled(text: str) -> str:
        whole = text.replace("</think>", tags.closing).replace("<think>", tags.opening)
        return whole.replace("</thin", tags.closing[:-2])

    text, thought, calls = expected
    for pieces in cuts(spelled(answer)):
        assert parse(pieces, thinking=thinking, tags=tags) == (spelled(text), spelled(thought), calls)


def test_channels_are_told_apart() -> None:
    answer = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis to=python code"
        "<|message|>1 + 1<|call|>"
        "<|start|>assistant<|channel|>final<|message|>So\nit is.<|return|>"
    )
    for pieces in cuts(answer):
        assert parse(pieces, "harmony") == ("So\nit is.", "Hm.\n1 + 1", [])


def test_tags_are_known_by_the_template() -> None:
    assert [find_reasoning_tags(f"{{# {each.closing} #}}") for each in REASONING_TAGS] == list(REASONING_TAGS)
    assert find_reasoning_tags("") is None
