"""What a model thinks is told apart from what it says and calls, for every pair of tags, wherever its text is cut."""

from typing import Any

import pytest
from tests.unit.text.test_text_answer import cuts, parse

from polyfleet.text.answer.parser import (
    REASONING_TAGS,
    RESPONSE_TAGS,
    Tags,
    find_reasoning_tags,
    find_response_tags,
)


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
def test_thoughts_are_told_apart(answer: str, thinking: bool, expected: Any, tags: Tags) -> None:
    def spelled(text: str) -> str:
        whole = text.replace("</think>", tags.closing).replace("<think>", tags.opening)
        return whole.replace("</thin", tags.closing[:-2])

    text, thought, calls = expected
    for pieces in cuts(spelled(answer)):
        assert parse(pieces, thinking=thinking, tags=tags) == (spelled(text), spelled(thought), calls)


CALL = '<tool_calls>[{"name": "time", "arguments": {}}]</tool_calls>'


@pytest.mark.parametrize(
    ("answer", "thinking", "expected"),
    [
        ("<think>\nHm.\n</think>\n<answer>\nHello.\n</answer>", False, ("Hello.", "Hm.", [])),
        ("Hm.\n</think>\n\n\n<answer>\n  Hello,\n\nyou.\n</answer>\n", True, ("  Hello,\n\nyou.", "Hm.", [])),
        ("<think></think><answer></answer>", False, ("", "", [])),
        ("\n<answer>a</answer>", False, ("a", "", [])),
        ("Hm.</think>Hello.\n", True, ("Hello.\n", "Hm.", [])),
        ("Hm.</think><answer>Hello </answe", True, ("Hello </answe", "Hm.", [])),
        ("Hm.</think><answer>Hello <answer> you", True, ("Hello <answer> you", "Hm.", [])),
        ("Hm. <answer>a</answer>", True, ("", "Hm. <answer>a</answer>", [])),
        (" Is <answer>a</answer>", False, (" Is <answer>a</answer>", "", [])),
        ("<answer>a</answer>\n b</answer> ", False, ("a\n b</answer> ", "", [])),
        (f"Hm.</think>\n<answer>\nLook:\n{CALL}\n</answer>\n", True, ("Look:", "Hm.", [("time", "{}")])),
        (f"Hm.</think>\n<answer>\nLook:\n</answer>\n\n{CALL}\n", True, ("Look:\n", "Hm.", [("time", "{}")])),
        (f"Hm.</think>\n\n{CALL}", True, ("", "Hm.", [("time", "{}")])),
        ("<answer>\n<tool_calls>[oops\n</answer>", False, ("<tool_calls>[oops", "", [])),
    ],
)
@pytest.mark.parametrize("tags", RESPONSE_TAGS, ids=lambda each: each.opening)
def test_what_is_said_is_taken_out_of_its_tags(answer: str, thinking: bool, expected: Any, tags: Tags) -> None:
    def spelled(text: str) -> str:
        return text.replace("answer>", f"{tags.opening[1:]}").replace("</answe", tags.closing[:-2])

    text, thought, calls = expected
    for pieces in cuts(spelled(answer)):
        found = parse(pieces, "hunyuan", thinking=thinking, response_tags=tags)
        assert found == (spelled(text), spelled(thought), calls)


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
    assert [find_response_tags(f"{{# {each.opening} #}}") for each in RESPONSE_TAGS] == list(RESPONSE_TAGS)
    assert find_reasoning_tags("") is find_response_tags("") is None
