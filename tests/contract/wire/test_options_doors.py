"""Every option of the engine at every door: the same name, limits and help, and one sentence for a bad value."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from tests.support.helm_chart import find, needs_helm, refusal, rendered
from tools.options import camel, files

from polyfleet.cli.commands.deploy import deploy
from polyfleet.cli.commands.generate import generate
from polyfleet.cli.commands.serve import serve
from polyfleet.cli.config import Deployment, StatedOptions, config_schema, load_config
from polyfleet.cli.errors import CliError
from polyfleet.cli.stack.stack import to_proto
from polyfleet.process.config import ConfigError
from polyfleet.scheduler.deployments.validate import check_deployment
from polyfleet.serving.command import main as worker
from polyfleet.serving.convert import options_of
from polyfleet.tuning.choice import read_choice
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import OPTIONS, EngineOptions, Option

COMMANDS: dict[str, tuple[click.Command, list[str]]] = {
    "serve": (serve, ["--model", "m"]),
    "deploy": (deploy, ["n", "/m.gguf", "--fleet", "127.0.0.1:1"]),
    "generate": (generate, ["x", "--offline", "/m.gguf"]),
    "worker": (worker, ["--model", "/m.gguf"]),
}
KINDS: dict[type, set[int]] = {
    bool: {pb.WorkerOptions.DESCRIPTOR.fields_by_name["reproducible"].type},
    int: {pb.WorkerOptions.DESCRIPTOR.fields_by_name["threads"].type},
    float: {pb.WorkerOptions.DESCRIPTOR.fields_by_name["step_seconds"].type},
    str: {pb.WorkerOptions.DESCRIPTOR.fields_by_name["dtype"].type},
}
BAD: dict[type, Any] = {bool: "maybe", int: -1, float: -1.5, str: "in\nvalid"}
BESIDE: dict[str, dict[str, Any]] = {  # one is of no use without the other
    "speculation": {"draft_model": "/models/draft"},
    "draft_model": {"speculation": "draft"},
}
WORKERS = "polyfleet-worker-p"
TOGETHER = "step_tokens: must be over max_sequences (8), not 8"
options = pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda each: each.name)


def sentence(option: Option) -> str:
    """What is said of a bad value."""
    bad = BAD[option.kind]
    return f"must be {option.limit}, not {bad!r}"


def example(option: Option) -> Any:
    """A value that is not the default; all of them go together."""
    if option.kind is bool:
        return not option.default
    return option.choices[-1] if option.choices else option.kind("99" if option.name == "step_tokens" else "7")


def plain(text: str) -> str:
    """Text without a terminal's line breaks."""
    return " ".join(text.split())


@options
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_flag_and_its_help(option: Option, name: str) -> None:
    command, _ = COMMANDS[name]
    (flag,) = [each for each in command.params if each.name == option.name]
    assert isinstance(flag, click.Option)
    assert flag.opts == [option.flag]
    assert (flag.help or "").startswith(option.help)


@options
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_a_bad_value(option: Option, name: str) -> None:
    command, arguments = COMMANDS[name]
    done = CliRunner(env={"COLUMNS": "500"}).invoke(command, [*arguments, f"{option.flag}={BAD[option.kind]}"])
    assert done.exit_code == 2
    assert f"Invalid value for '{option.flag}': {sentence(option)}." in plain(done.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_values_that_do_not_go_together(name: str) -> None:
    command, arguments = COMMANDS[name]
    done = CliRunner(env={"COLUMNS": "500"}).invoke(command, [*arguments, "--step-tokens=8", "--max-sequences=8"])
    assert done.exit_code == 2
    assert TOGETHER in plain(done.stderr)


def test_file_call_and_choice_refuse_values_that_do_not_go_together(tmp_path: Path) -> None:
    values = {"step_tokens": 8, "max_sequences": 8}
    config, choice = tmp_path / "polyfleet.yaml", tmp_path / "choice.json"
    config.write_text(yaml.safe_dump({"deployments": [{"name": "a", "source": "b", "options": values}]}))
    with pytest.raises(CliError, match=re.escape(TOGETHER)):
        load_config(config)
    with pytest.raises(FieldError, match=re.escape(f"deployment.options.{TOGETHER}")):
        check_deployment(to_proto(Deployment(name="a", source="b", options=StatedOptions(values))))
    choice.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=re.escape(TOGETHER)):
        read_choice(choice)


@options
def test_the_file_and_its_schema_have_it(option: Option, tmp_path: Path) -> None:
    path = tmp_path / "polyfleet.yaml"

    def write(value: Any) -> None:
        path.write_text(
            yaml.safe_dump({"deployments": [{"name": "a", "source": "b", "options": {option.name: value}}]})
        )

    write(option.default)
    assert load_config(path).deployments[0].options == {option.name: option.default}
    write(BAD[option.kind])
    with pytest.raises(CliError) as raised:
        load_config(path)
    assert f"{option.name}: {sentence(option)} - at `$.deployments[0].options`" in raised.value.message
    schema = config_schema()["$defs"]["Deployment"]["properties"]["options"]["properties"][option.name]
    assert schema == {**option.schema(), "description": option.help, "default": option.default}


@options
def test_the_message_has_it(option: Option) -> None:
    field = pb.WorkerOptions.DESCRIPTOR.fields_by_name[option.name]
    assert {field.type} == KINDS[option.kind]
    if option.default is True:
        assert field.has_presence  # or a false could not be told from nothing


@options
def test_a_value_reaches_the_engine(option: Option) -> None:
    values = BESIDE.get(option.name, {}) | {option.name: example(option)}
    wish = to_proto(Deployment(name="a", source="b", options=StatedOptions(values)))
    check_deployment(wish)
    engines = options_of(wish.options, "cpu")
    assert engines == EngineOptions(device="cpu", canary=True, **values)
    assert engines != EngineOptions(device="cpu", canary=True)


@pytest.mark.parametrize("option", [each for each in OPTIONS.values() if each.kind is not bool], ids=lambda e: e.name)
def test_a_call_is_refused_for_a_bad_value(option: Option) -> None:
    """Of the values that protobuf carries at all."""
    bad = int(option.most) + 1 if option.kind is int else BAD[option.kind]
    wish = to_proto(Deployment(name="a", source="b", options=StatedOptions({option.name: bad})))
    with pytest.raises(FieldError) as raised:
        check_deployment(wish)
    assert str(raised.value) == f"deployment.options.{option.name}: must be {option.limit}, not {bad!r}"


@needs_helm
def test_the_chart_hands_every_option_to_the_worker() -> None:
    values = {camel(each.name): example(each) for each in OPTIONS.values()}
    pool = find(
        rendered(
            values={"workers": {"p": {"accelerator": "cpu", "model": {"image": {"path": "/m"}}, "options": values}}}
        ),
        "Deployment",
        WORKERS,
    )
    (container,) = [each for each in pool["spec"]["template"]["spec"]["containers"] if each["name"] == "worker"]
    flags = [each for each in container["args"] if each.partition("=")[0] in {each.flag for each in OPTIONS.values()}]
    context = worker.make_context("worker", ["--model", "/m.gguf", *flags])
    assert {name: context.params[name] for name in OPTIONS} == {each.name: example(each) for each in OPTIONS.values()}


@needs_helm
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stepTokens": 8, "maxSequences": 8}, "stepTokens must be over maxSequences (8), not 8."),
        ({"stepTokens": 1}, "stepTokens must be over maxSequences (1), not 1."),
        (
            {"stepTokens": 40, "maxSequences": 8, "speculation": "ngram"},
            "stepTokens must be over maxSequences and their drafts (40), not 40.",
        ),
        ({"ngramMin": 9}, "ngramMax must be at least ngramMin (9), not 8."),
    ],
)
def test_the_chart_refuses_options_that_do_not_go_together(options: dict[str, Any], sentence: str) -> None:
    errors = refusal({"workers": {"p": {"accelerator": "cpu", "model": {"image": {"path": "/m"}}, "options": options}}})
    assert f"workers.p.options.{sentence}" in errors


@needs_helm
def test_the_chart_refuses_bad_values_by_option_and_limit() -> None:
    values = {camel(each.name): BAD[each.kind] for each in OPTIONS.values()}
    errors = refusal({"workers": {"p": {"accelerator": "cpu", "model": {"image": {"path": "/m"}}, "options": values}}})
    said = {line.partition("': ")[0].rpartition("/")[2]: line for line in errors.splitlines() if "/options/" in line}
    assert set(said) == set(values)
    for each in OPTIONS.values():
        if each.kind in (int, float):
            assert "want 0" in said[camel(each.name)]


@options
def test_a_stored_choice_has_it(option: Option, tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    path.write_text(json.dumps({option.name: option.default}))
    assert read_choice(path) == {option.name: option.default}
    path.write_text(json.dumps({option.name: BAD[option.kind]}))
    with pytest.raises(ConfigError) as raised:
        read_choice(path)
    assert str(raised.value) == f"the file {path} can't be used: {option.name}: {sentence(option)}"


@options
def test_a_worker_without_a_model_takes_no_option_that_a_load_call_brings(option: Option) -> None:
    done = CliRunner().invoke(worker, [option.flag, str(option.default).lower()])
    assert done.exit_code == 2
    assert f"{option.flag} belongs to --model" in plain(done.stderr)


def test_files_that_are_made_of_the_declaration_are_up_to_date() -> None:
    assert [str(path) for path, text in files().items() if path.read_text(encoding="utf-8") != text] == []


@options
def test_generate_takes_no_option_that_a_gateways_workers_have_chosen(option: Option) -> None:
    done = CliRunner().invoke(generate, ["x", option.flag, str(option.default).lower()])
    assert done.exit_code == 2
    assert f"{option.flag} belongs to --offline" in plain(done.stderr)
