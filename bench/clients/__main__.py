"""Client libraries against a running stack: which of them can do what, as a table.

    python -m bench.clients                                   # a stack of its own, all libraries, below /tmp
    python -m bench.clients --only openai,node-ai --into DIR
    python -m bench.clients --url http://127.0.0.1:8000 --model NAME --seeing NAME

Installs what it tries into --into, from the registries of Python and Node; what it can't install is left out, with the
reason. Its own stack serves the model of `make serve` and a tiny one of random weights that sees. A dot is a feature
that worked, a number one that did not, with the reason below the table; a blank is one that the library has not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.clients.environments import HERE, LIBRARIES, NotInstalled, command, version
from bench.command import parser_of

from polyfleet.cli.stack.settings import MODEL_NAME

FEATURES = (
    *("chat", "streams", "tools: auto", "tools: required", "tools: named", "tools: none", "tools: one call"),
    *("tools: streamed", "tools: results", "structured output", "n, logprobs", "embeddings", "images", "errors"),
    *("responses", "messages"),
)
SEEING = "seeing"
PATIENCE_SECONDS = 1200.0
Found = dict[str, dict[str, str]]  # of each library, by feature what went wrong; empty where nothing did


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", default=",".join(LIBRARIES), help="comma-separated names (default: all)")
    parser.add_argument("--into", type=Path, default=Path(tempfile.gettempdir()) / "polyfleet-clients")
    parser.add_argument("--url", default="", help="of a stack that runs (default: one of its own)")
    parser.add_argument("--model", default=MODEL_NAME, help="its model")
    parser.add_argument("--seeing", default=SEEING, help="its model that sees")
    chosen = parser.parse_args(arguments)
    chosen.only = chosen.only.split(",")
    if unknown := [each for each in chosen.only if each not in LIBRARIES]:
        parser.error(f"--only: there is no {unknown[0]!r}; there are {', '.join(LIBRARIES)}")
    return chosen


@contextmanager
def stack() -> Iterator[str]:
    """A stack of its own that serves both models; gives its address."""
    from tests.support import tiny_vision
    from tests.support.serve_process import ServeProcess, wait_for

    with tempfile.TemporaryDirectory(prefix="polyfleet-clients-") as name:
        folder = Path(name)
        (folder / SEEING).mkdir()
        tiny_vision.make(folder / SEEING)
        serve = ServeProcess(folder / "state").start()
        try:
            serve.wait_ready()
            done = serve.polyfleet("deploy", SEEING, str(folder / SEEING), "--fleet", serve.fleet)
            assert done.returncode == 0, done.stderr
            wait_for(lambda: len(serve.ready_workers()) == 2, "the model that sees")
            yield f"http://{serve.http}"
        finally:
            serve.stop()


def attempt(started: list[str], place: tuple[str, str, str]) -> dict[str, str]:
    """What came of each feature. Raises NotInstalled where the library told of none."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [*started, *place], capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_SECONDS
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"feature"')]
    if not lines:
        raise NotInstalled(f"it ended with {(done.stderr.strip().splitlines() or ['nothing'])[-1]}")
    return {line["feature"]: line["problem"] for line in lines}


def table(found: Mapping[str, Mapping[str, str]]) -> str:
    """Libraries by features in Markdown, and below what did not work."""
    lines = ["| |" + "".join(f" {title} |" for title in found), "| --- |" + " --- |" * len(found)]
    problems: list[str] = []
    for feature in FEATURES:
        cells = []
        for title, features in found.items():
            if problem := features.get(feature, ""):
                problems.append(f"{len(problems) + 1}. {title}, {feature}: {problem}")
            cells.append(str(len(problems)) if problem else "●" if feature in features else "")
        lines.append(f"| {feature} |" + "".join(f" {cell} |" for cell in cells))
    return "\n".join([*lines, "", *problems])


def main() -> int:
    """Try them; 1 where something did not work, 0 else."""
    chosen = parse()
    if chosen.url:
        found = try_all(chosen, chosen.url)
    else:
        with stack() as url:
            found = try_all(chosen, url)
    print(table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(problem for features in found.values() for problem in features.values()))


def try_all(chosen: argparse.Namespace, url: str) -> Found:
    """Every library that can be installed, one after the other."""
    found: Found = {}
    for name in chosen.only:
        library = LIBRARIES[name]
        try:
            started = command(library, chosen.into)
            title = f"{library.title} {version(library, chosen.into)}"
            found[title] = attempt(started, (url, chosen.model, chosen.seeing))
        except NotInstalled as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
