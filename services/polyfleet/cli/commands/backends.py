"""`polyfleet backends …` and `polyfleet conformance`: what accelerators are here, which is used, how well they do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from polyfleet.cli.errors import CliError, ExitCode, sentence, sentences
from polyfleet.cli.options import FILE, examples, json_option
from polyfleet.cli.terminal.output import err, out, print_json, print_table, spinner

CONFORMANCE_SECONDS = 600.0
backend_option = click.option("--backend", default="auto", show_default=True, help="A backend's name, or auto.")
template_option = click.option("--template", default="auto", show_default=True, help="A template's name, or auto.")


@click.group()
def backends() -> None:
    """Find, choose, test and tune accelerators of this machine. No command initialises a device in this process."""


@backends.command(epilog=examples("polyfleet backends info", "polyfleet backends info --json"))
@json_option
def info(as_json: bool) -> None:
    """Show every backend: available or why not, its devices and what they compute in."""
    from polyfleet.backends.protocol import memory_words
    from polyfleet.tuning.optimizer import BackendOptimizer

    facts = BackendOptimizer().system_info()
    facts["in_use"], how, facts["problem"] = in_use(facts)
    if as_json:
        print_json(facts)
        return
    for name, backend in facts["backends"].items():
        chosen = f"  [green]{how}[/]" if name == facts["in_use"] else ""
        out.print(f"[bold]{name:<10}[/] {escape(backend['reason'] or 'available')}{chosen}")
        for device in backend["devices"]:
            memory = memory_words(device["total_memory_bytes"])
            out.print(f"  {device['index']}: {device['name']}, {memory}, {device['architecture']}", markup=False)
            out.print(f"     computes in {', '.join(device['dtypes'])}; prefers {device['preferred_dtype']}")
    if facts["problem"]:
        err.print(facts["problem"], markup=False)


def in_use(facts: dict[str, Any]) -> tuple[str, str, str]:
    """The backend that commands use here and how it came to that; or "" twice and why the one chosen can't be had."""
    from polyfleet.tuning.choice import chosen_by, user_choice

    try:
        chosen = str(user_choice().get("backend", "auto"))
    except ValueError as error:
        return "", "", sentence(error)
    if chosen == "auto":
        return facts["default"], "chosen by auto", ""
    if not facts["backends"][chosen]["available"]:
        return "", "", f"Backend {chosen} can't be used: {facts['backends'][chosen]['reason']} ({chosen_by()})."
    return chosen, chosen_by(), ""


@backends.command("list", epilog=examples("polyfleet backends list"))
@json_option
def list_(as_json: bool) -> None:
    """List the backends that can be used here, best first; the one in use is marked."""
    from polyfleet.backends import BackendRegistry
    from polyfleet.backends.protocol import accelerator_name
    from polyfleet.tuning.choice import get_backend

    with sentences():
        used = accelerator_name(get_backend().type)
    names = list(BackendRegistry.list_available())
    if as_json:
        print_json({"available": names, "in_use": used})
    else:
        for name in names:
            out.print(f"{'*' if name == used else ' '} {name}")


@backends.command("set", epilog=examples("polyfleet backends set cuda", "polyfleet backends set auto"))
@click.argument("name")
def set_(name: str) -> None:
    """Use backend NAME for this user from now on (undo with `polyfleet backends reset`)."""
    from polyfleet.backends.protocol import accelerator_name
    from polyfleet.tuning.choice import set_backend

    with sentences():
        backend = set_backend(name)
    out.print(f"Backend {accelerator_name(backend.type)} is used from now on.")


@backends.command(epilog=examples("polyfleet backends reset"))
def reset() -> None:
    """Forget the backend and options chosen before; the best one found is used again."""
    from polyfleet.backends.protocol import accelerator_name
    from polyfleet.tuning.choice import get_backend, reset_backend

    with sentences():
        reset_backend()
        out.print(f"Nothing is chosen any more; auto means {accelerator_name(get_backend().type)} here.")


@backends.command(epilog=examples("polyfleet backends test cpu"))
@click.argument("name", default="auto")
@json_option
def test(name: str, as_json: bool) -> None:
    """Test that backend NAME works here; the same checks as `polyfleet conformance`."""
    _conformance(name, None, as_json)


@backends.command(
    epilog=examples(
        "polyfleet backends optimize",
        "polyfleet backends optimize --backend cuda --template throughput --apply",
        "polyfleet backends optimize --output optimal.json",
    )
)
@backend_option
@template_option
@click.option("--apply", is_flag=True, help="Make the result this user's default options.")
@click.option("--output", type=FILE, help="Write the result to a file for `polyfleet config load`.")
@click.option("--templates", is_flag=True, help="List the templates and end.")
@json_option
def optimize(backend: str, template: str, apply: bool, output: Path | None, templates: bool, as_json: bool) -> None:
    """Choose engine options for a backend's device by its memory and cores, or by a template."""
    from polyfleet.tuning.choice import write_choice
    from polyfleet.tuning.optimizer import BackendOptimizer
    from polyfleet.tuning.templates import TEMPLATES

    if templates and as_json:
        print_json({name: each.description for name, each in TEMPLATES.items()})
        return
    if templates:
        print_table(("TEMPLATE", "FOR"), [(name, each.description) for name, each in TEMPLATES.items()])
        return
    optimizer = BackendOptimizer()
    with sentences():
        config = optimizer.optimize(backend, template)
        if output is not None:
            write_choice(output, config)
        applied = optimizer.apply(config) if apply else None
    if as_json:
        print_json(config)
    else:
        print_table(("OPTION", "VALUE"), [(key, str(value)) for key, value in config.items()])
    for done, path in (("written to", output), ("applied: it is in", applied)):
        if path is not None:
            err.print(f"The configuration is {done} {path}.", markup=False)


@click.command(epilog=examples("polyfleet conformance", "polyfleet conformance --backend cuda --output report"))
@backend_option
@click.option("--output", type=FILE, help="Also write the report to OUTPUT.json and OUTPUT.txt.")
@json_option
def conformance(backend: str, output: Path | None, as_json: bool) -> None:
    """Check that a backend on this machine does what it says; exit code 1 when a check fails."""
    _conformance(backend, output, as_json)


def _conformance(backend: str, output: Path | None, as_json: bool) -> None:
    from polyfleet.conformance.report import ConformanceReport
    from polyfleet.tuning.choice import get_backend

    with sentences():
        get_backend(backend)  # what can't be had is said at once and by its own exit code
    command = [sys.executable, "-m", "polyfleet.conformance", backend]
    try:
        with spinner(f"checking {backend} …"):
            done = subprocess.run(command, capture_output=True, text=True, timeout=CONFORMANCE_SECONDS)
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise CliError(f"The checks of {backend} did not end within {CONFORMANCE_SECONDS:g} s.") from None
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CliError(f"The process that checks {backend} broke off: {last}") from None
    if "error" in answer:
        raise CliError(sentence(ValueError(answer["error"])), ExitCode.UNAVAILABLE)
    report = ConformanceReport.from_json(answer)
    if as_json:
        print_json(answer)
    else:
        out.print(report.to_text(), markup=False)
    if output is not None:
        stem = output.with_suffix("") if output.suffix in (".json", ".txt") else output
        with sentences():
            stem.with_name(f"{stem.name}.json").write_text(json.dumps(answer, indent=2) + "\n")
            stem.with_name(f"{stem.name}.txt").write_text(report.to_text() + "\n")
    if not report.passed:
        sys.exit(ExitCode.FAILED)
