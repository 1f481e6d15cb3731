"""Finds devices and operators and prints them as JSON. `polyfleet info` runs it as a process with a time limit."""

import json
import sys
from typing import Any

PROBE_TOKENS = 64  # the engine is loaded only to ask it


def accelerators() -> tuple[list[dict[str, Any]], str]:
    """Every backend: available or why not, what chose it if it is in use, its devices; and why there is none in use."""
    from polyfleet.cli.commands.backends import in_use
    from polyfleet.tuning.optimizer import BackendOptimizer

    facts = BackendOptimizer().system_info()
    used, how, problem = in_use(facts)
    listed = [
        {
            "name": name,
            "reason": found["reason"],
            "default": name == facts["default"],
            "chosen": how if name == used else "",
            "devices": found["devices"],
        }
        for name, found in facts["backends"].items()
    ]
    return listed, problem


def operators() -> dict[str, Any]:
    """What runs the bundled model on the default device: the executor, those passed over with the reason, and the
    implementation of each operator; nothing without the model."""
    from polyfleet.cli.chosen import Choice
    from polyfleet.cli.errors import CliError
    from polyfleet.cli.stack.settings import bundled_model
    from polyfleet.engine.engine import Engine
    from polyfleet.wire.options import EngineOptions

    try:
        path = bundled_model()
    except CliError:
        return {}
    choice, small = Choice.read(), {"context_length": PROBE_TOKENS, "kv_cache_tokens": PROBE_TOKENS, "max_sequences": 1}
    options: dict[str, Any] = choice.options_beside(small, ())
    engine = Engine.load(str(path), EngineOptions(device=choice.backend, **options))
    return {
        "executor": engine.facts.executor,
        "passed_over": list(engine.facts.passed_over),
        "speculation": engine.facts.speculation,
        "operators": dict(engine.implementations()),
    }


def cpu_library() -> dict[str, Any]:
    """The compiled CPU library: its instruction sets and implementations, or why it is not there."""
    from polyfleet.kernels.cpu import describe

    return describe()


def main() -> None:
    """Print one JSON object."""
    facts: dict[str, Any] = {"accelerators": [], "cpu_library": {}, "problem": ""}
    facts |= {"executor": "", "passed_over": [], "speculation": "", "operators": {}}
    try:
        facts["accelerators"], facts["problem"] = accelerators()
        facts["cpu_library"] = cpu_library()
        facts |= operators() if not facts["problem"] else {}
    except Exception as error:  # whatever a driver may throw: the report is about just that
        facts["problem"] = f"{type(error).__name__}: {error}"
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
