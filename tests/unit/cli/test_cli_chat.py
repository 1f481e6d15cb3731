"""`polyfleet chat` on a terminal: what is remembered between turns."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.scripted_inference import serve

from polyfleet.cli.chat import converse
from polyfleet.client import Client, Message
from polyfleet.v1 import inference_pb2 as pb


def answer(request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
    text = f"answer to {request.messages[-1].content}"
    yield pb.GenerateResponse(text=text, token_ids=[1], finish_reason=pb.FINISH_REASON_STOP)
    yield pb.GenerateResponse(usage=pb.Usage(completion_tokens=1))


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Let `input()` give these, then the end of the file."""
    typed = iter(lines)

    def give(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", give)


def test_turns_are_remembered_until_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, "one", "", "two", "/clear", "three")
    with serve(answer) as script, Client(script.address) as client:
        converse(client, [Message("system", "Be brief.")], {})
    said = [[message.content for message in call.messages] for call in script.calls]
    assert said == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "answer to one", "two"],
        ["Be brief.", "three"],
    ]
    assert "answer to two\n" in capsys.readouterr().out


def test_ctrl_c_at_the_prompt_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    with serve(answer) as script, Client(script.address) as client:
        converse(client, [], {})
    assert script.calls == []
