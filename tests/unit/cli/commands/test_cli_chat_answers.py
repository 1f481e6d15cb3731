"""`polyfleet chat` with tools, whose results the user types, and with answers of a form that is asked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.rpc import code_pb2, error_details_pb2
from tests.support.scripted_inference import fail, serve
from tests.unit.cli.commands.test_cli_chat import answer, type_lines

from polyfleet.cli.commands.chat import converse
from polyfleet.cli.main import cli
from polyfleet.client import Client
from polyfleet.v1 import inference_pb2 as pb

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def calling(request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
    calls = [
        pb.ToolCallDelta(index=0, id="c1", name="weather"),
        pb.ToolCallDelta(index=0, arguments='{"city": "Bern"}'),
    ]
    yield pb.GenerateResponse(tool_calls=calls, token_ids=[1], finish_reason=pb.FINISH_REASON_TOOL_CALLS)
    yield pb.GenerateResponse(usage=pb.Usage(completion_tokens=1))


def test_what_a_tool_gives_is_typed_and_remembered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, "How is it?", "3 degrees", "And now?")
    with serve(calling, answer) as script, Client(script.address) as client:
        converse(client, [], {"tools": [TOOL]})
    assert capsys.readouterr().out == "answer to 3 degrees\nanswer to And now?\n\n"
    first, second, third = script.calls
    assert [json.loads(each) for each in first.tools] == [TOOL]
    assert [message.role for message in second.messages] == ["user", "assistant", "tool"]
    called, result = second.messages[1:]
    assert [(call.id, call.name, call.arguments) for call in called.tool_calls] == [
        ("c1", "weather", '{"city": "Bern"}')
    ]
    assert (result.content, result.tool_call_id) == ("3 degrees", "c1")
    assert [message.content for message in third.messages[2:]] == ["3 degrees", "answer to 3 degrees", "And now?"]


def test_the_end_of_input_in_place_of_a_result_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    type_lines(monkeypatch, "How is it?")
    with serve(calling, answer) as script, Client(script.address) as client:
        converse(client, [], {"tools": [TOOL]})
    assert len(script.calls) == 1


def test_forms_and_tools_reach_the_gateway_from_a_pipe(tmp_path: Path) -> None:
    schema, tools = tmp_path / "schema.json", tmp_path / "tools.json"
    schema.write_text('{"type": "boolean"}')
    tools.write_text(json.dumps([TOOL]))
    told = []
    with serve(calling) as script:
        for options in (("--json-schema", str(schema)), ("--regex", "a+"), ("--choice", "yes", "--choice", "no"), ()):
            given = ("chat", "--gateway", script.address, "--tools", str(tools), *options)
            told.append(CliRunner().invoke(cli, given, input="Is it so?"))
    assert {(each.exit_code, each.stdout) for each in told} == {(0, 'weather({"city": "Bern"})\n')}
    asked = [call.structure for call in script.calls]
    assert (asked[0].json_schema, asked[1].regex, list(asked[2].choices)) == (
        '{"type": "boolean"}',
        "a+",
        ["yes", "no"],
    )
    assert [call.HasField("structure") for call in script.calls] == [True, True, True, False]
    assert [json.loads(call.tools[0]) for call in script.calls] == [TOOL] * 4


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text("{")
    result = CliRunner().invoke(cli, ("chat", "--tools", str(tmp_path / "tools.json")), input="Hi")
    assert result.exit_code == 2
    assert "tools.json is no valid JSON" in result.stderr


def test_a_tool_outside_a_list_is_told(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOL))
    with serve(calling) as script:
        given = ("chat", "--gateway", script.address, "--tools", str(tmp_path / "tools.json"))
        result = CliRunner().invoke(cli, given, input="Hi")
    assert (result.exit_code, script.calls) == (2, [])
    assert result.stderr.startswith("Error: --tools: must be a list, not {'type': 'function'")


@pytest.mark.parametrize(
    ("command", "field", "named"),
    [
        ("chat --regex (", "structure.regex", "--regex"),
        ("chat --regex a --max-tokens 1", "structure", "--regex"),
        ("chat --choice a", "structure.choices", "--choice"),
        ("chat --json-schema {file}", "structure", "--json-schema"),
        ("chat --json-schema {file}", "structure.json_schema", "--json-schema"),
        ("chat --tools {file}", "tools[0].function.name", "--tools"),
        ("chat --model x", "model", "--model"),
        ("chat --temperature 1", "sampling.temperature", "--temperature"),
        ("chat --seed 1", "sampling.seed", "--seed"),
        ("chat", "max_tokens", "--max-tokens"),
        ("chat", "messages[0].content", "messages[0].content"),
        ("generate Hi", "text", "TEXT"),
        ("generate --prompt Hi", "text", "--prompt"),
        ("generate --prompt-ids 5", "token_ids", "--prompt-ids"),
        ("generate Hi --image {file}", "messages[0].content[1].image_url", "--image"),
        ("generate Hi --min-tokens 9", "min_tokens", "--min-tokens"),
        ("generate Hi --max-tokens 9", "max_tokens", "--max-tokens"),
    ],
)
def test_a_fault_names_the_option_that_gave_it(tmp_path: Path, command: str, field: str, named: str) -> None:
    (tmp_path / "file.json").write_text("[]")
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description="is wrong")
    violations = error_details_pb2.BadRequest(field_violations=[violation])
    step = fail(code_pb2.INVALID_ARGUMENT, f"{field}: is wrong.", violations)
    words = command.format(file=tmp_path / "file.json").split()
    with serve(step) as script:
        result = CliRunner().invoke(cli, [words[0], "--gateway", script.address, *words[1:]], input="Hi")
    assert (result.exit_code, result.stderr) == (2, f"Error: {named}: is wrong.\n")
