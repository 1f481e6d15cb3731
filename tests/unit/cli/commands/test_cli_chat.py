"""`polyfleet chat` on a terminal: what is remembered between turns."""

import os
import pty
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.rpc import code_pb2
from tests.support.scripted_inference import fail, serve

from polyfleet.cli.commands.chat import converse, pace
from polyfleet.cli.errors import ExitCode
from polyfleet.client import Client, Message, Usage
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


def test_images_go_with_what_is_said_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a b.png").write_bytes(b"file")
    type_lines(
        monkeypatch,
        *(f"/image {tmp_path}/none.png", "/image", f"/image {tmp_path}/a b.png", "/image https://a/b.png"),
        *("What is it?", "And?"),
    )
    with serve(answer) as script, Client(script.address) as client:
        converse(client, [], {})
    parts = [{"image": b"file"}, {"image_url": "https://a/b.png"}, {"text": "What is it?"}]
    shown = pb.ChatMessage(role="user", parts=[pb.ContentPart(**part) for part in parts])  # type: ignore[arg-type]
    assert [call.messages[0] for call in script.calls] == [shown, shown]
    assert len(script.calls[1].messages) == 3
    assert "There is no file" in (said := capsys.readouterr().err)
    assert "Name a file: /image FILE." in said


def thoughtful_answer(request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
    yield pb.GenerateResponse(reasoning="Is it ", token_ids=[1])
    yield pb.GenerateResponse(reasoning="[bold]?", token_ids=[2])
    yield pb.GenerateResponse(text="Yes.", token_ids=[3], finish_reason=pb.FINISH_REASON_STOP)
    yield pb.GenerateResponse(usage=pb.Usage(completion_tokens=3))


def test_thoughts_are_shown_beside_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, "one")
    with serve(thoughtful_answer) as script, Client(script.address) as client:
        converse(client, [], {})
    told = capsys.readouterr()
    assert told.out.startswith("Yes.\n")
    assert "Is it [bold]?\n" in told.err


def test_an_unknown_command_is_explained_and_not_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, "/reset now", "/help", " /reset now", "/quit", "never")
    with serve(answer) as script, Client(script.address) as client:
        converse(client, [], {})
    assert [call.messages[-1].content for call in script.calls] == ["/reset now"]
    told = capsys.readouterr().err
    assert "There is no command /reset." in told
    assert told.count("/clear forgets the conversation") == 2


def test_a_turn_that_fails_is_forgotten_and_the_chat_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, "one", "two")
    with serve(fail(code_pb2.INVALID_ARGUMENT, "It is too long."), answer) as script, Client(script.address) as client:
        converse(client, [], {})
    assert [len(call.messages) for call in script.calls] == [1, 1]
    told = capsys.readouterr()
    assert "It is too long. Not remembered" in told.err
    assert told.out == "answer to two\n\n"


def test_pace_counts_from_the_first_token_on() -> None:
    assert pace(Usage(3, 0, 11), 0.5, 2.0) == "11 tokens, the first after 0.50 s, 5.0 tokens/s"
    assert pace(Usage(3, 0, 1), 0.5, 0.0) == "1 token, the first after 0.50 s"
    assert pace(Usage(3, 0, 2), 0.5, 0.0) == "2 tokens, the first after 0.50 s"


def models(*names: str) -> Callable[[Any, Any], pb.ListModelsResponse]:
    return lambda request, context: pb.ListModelsResponse(models=[pb.Model(name=name) for name in names])


def long_answer(request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
    for piece in ("Words of an ans", "wer that is", " longer than one li", "ne of it."):
        time.sleep(0.05)
        yield pb.GenerateResponse(text=piece, token_ids=[1])
    yield pb.GenerateResponse(finish_reason=pb.FINISH_REASON_STOP)
    yield pb.GenerateResponse(usage=pb.Usage(completion_tokens=4))


class Terminal:
    """`polyfleet chat` on a terminal of 20 columns."""

    def __init__(self, *arguments: str) -> None:
        self.process, self.screen = pty.fork()
        if self.process == 0:
            environ = {**os.environ, "TERM": "dumb", "COLUMNS": "20"}
            os.execve(sys.executable, [sys.executable, "-m", "polyfleet.cli", "chat", *arguments], environ)
        self.shown = ""

    def until(self, text: str) -> str:
        """What is shown up to and with `text`, or to the end."""
        deadline = time.monotonic() + 200
        while text not in self.shown and select.select([self.screen], [], [], deadline - time.monotonic())[0]:
            try:
                self.shown += os.read(self.screen, 65536).decode()
            except OSError:  # the command has ended
                break
        before, found, self.shown = self.shown.partition(text)
        return (before + found).replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def test_on_a_terminal_words_are_whole_and_typing_does_not_mix_with_the_answer() -> None:
    with serve(models("small"), long_answer) as script:
        terminal = Terminal("--gateway", script.address)
        assert f"small at {script.address}" in " ".join(terminal.until("> ").split())  # wrapped, with a long port
        terminal.type("hello\n")
        terminal.until("Words")
        terminal.type("typed too early\n")
        answer = terminal.until("> ")
        terminal.type("\x04")
        terminal.until("never shown")
        assert terminal.code() == 0
    assert answer.startswith(" of an answer\nthat is longer than\none line of it.\n4 tokens, the")
    assert "4 tokens, the first after" in " ".join(answer.split())
    assert "tokens/s" in answer
    assert "early" not in answer
    assert len(script.calls) == 2  # what was typed too early was not sent


def test_several_models_are_listed_where_none_is_named() -> None:
    with serve(models("a", "b")) as script:
        terminal = Terminal("--gateway", script.address)
        assert "Several models are served; name one with --model: a, b." in terminal.until("a, b.")
        terminal.until("never shown")
        assert terminal.code() == ExitCode.BAD_INPUT


def test_ctrl_c_at_the_prompt_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    with serve(answer) as script, Client(script.address) as client:
        converse(client, [], {})
    assert script.calls == []
