"""What structured output costs in decode: the same sequences with a JSON schema and without, in turn.

    python bench/engine.py --structured                              # the model of `make serve`, on the CPU
    python bench/engine.py --structured --threads 1 --clock cpu      # the same on a busy machine
    python -m bench.structured --device cuda --shape llama3_8b       # random weights in bfloat16, that model's tokens

Rows structured_16 (drawn at temperature 0.7) and structured_16_greedy, tokens per second; the peer is free text of the
same model. A figure is the median step of a run in which all sequences decode, and of the runs the best: what else the
machine does only adds. Random weights keep to the schema as any do: what it does not allow is never drawn.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a file

from bench.command import parser_of, positive, run
from bench.contenders.workload import CLOCKS, Clock
from bench.report import Row, compare, publish

from polyfleet.engine.choosing.machines import open_machine
from polyfleet.engine.engine import Engine
from polyfleet.loading.load import load_model
from polyfleet.text.grammar import make_grammar
from polyfleet.text.model_text import ModelText
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import SamplingParams
from polyfleet.wire.structure import Structure

SEQUENCES, TOKENS = 16, 40
PEOPLE = {
    "type": "array",
    "minItems": 16,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}


def measure(model: Path, options: EngineOptions, repeats: int, clock: Clock = CLOCKS["wall"]) -> Iterator[Row]:
    """The rows; the best of `repeats` runs of each."""
    engine = Engine.load(str(model), options)
    assert engine.tokenizer is not None
    prompts = ModelText(engine.tokenizer.document).prompts
    grammar = make_grammar(Structure(json_schema=json.dumps(PEOPLE)), None)
    prompt = tuple(prompts.encode("Twenty people, with their ages and tags, as JSON:"))
    for name, temperature in ((f"structured_{SEQUENCES}", 0.7), (f"structured_{SEQUENCES}_greedy", 0.0)):
        seconds: dict[str, list[float]] = {grammar: [], "": []}
        for _ in range(repeats + 1):
            for each, found in seconds.items():
                found.append(_run(engine, prompt, temperature, each, clock))
        kept, free = (SEQUENCES / min(found[1:]) for found in seconds.values())  # the first warms up
        yield compare(name, kept, "tokens/s", "free text", free)
    engine.close()


def _run(engine: Engine, prompt: tuple[int, ...], temperature: float, grammar: str, clock: Clock) -> float:
    """Seconds of a step in which all sequences decode: the median."""
    for number in range(SEQUENCES):
        sampling = SamplingParams(temperature=temperature, seed=number)
        engine.add(
            SequenceRequest(
                str(number), prompt, sampling, max_tokens=TOKENS, ignore_eos=not grammar, grammar=grammar
            )  # free text does not end before the others
        )
    steps = []
    while engine.has_work:
        started = clock()
        updates = engine.step()
        if len(updates) == SEQUENCES:
            steps.append(clock() - started)
    return median(steps[1:])


def main() -> int:
    """Of a shape with random weights."""
    from bench.card.shapes import SHAPES, write_model

    parser = parser_of(__doc__)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="smollm2_135m")
    parser.add_argument("--layers", type=int, default=0, help="of the shape; 0: as many as it has")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--tokens", type=Path, metavar="FILE", help="a tokenizer.json (default: the bundled model's)")
    parser.add_argument("--repeats", type=positive, default=5)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        shape = SHAPES[wanted.shape]
        shape = replace(shape, layers=wanted.layers or shape.layers)
        folder = write_model(shape, Path(name), open_machine(wanted.device)[0].device)
        (folder / "tokenizer.json").write_text(_tokens(wanted.tokens), encoding="utf-8")
        options = EngineOptions(
            device=wanted.device, executor=wanted.executor, max_sequences=SEQUENCES, context_length=512
        )
        publish(measure(folder, options, wanted.repeats), wanted.json)
    return 0


def _tokens(path: Path | None) -> str:
    if path:
        return path.read_text(encoding="utf-8")
    from polyfleet.cli.stack.settings import bundled_model  # brings gRPC, which not every machine with a card has

    assets = load_model(bundled_model()).tokenizer
    assert assets is not None
    return json.dumps(json.loads(assets.document)["tokenizer"])


if __name__ == "__main__":
    run(main)
