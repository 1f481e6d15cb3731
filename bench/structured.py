"""What structured output costs in decode: the same sequences with a JSON schema and without, in turn.

Rows structured_16 (drawn at temperature 0.7) and structured_16_greedy, tokens per second; the peer is free text of the
same model. A figure is the median step of a run in which all sequences decode, and of the runs the best: what else the
machine does only adds.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.report import Row, compare

from polyfleet.engine.engine import Engine
from polyfleet.text.grammar import make_grammar
from polyfleet.text.model_text import ModelText
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Message, SequenceRequest
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


def measure(model: Path, options: EngineOptions, repeats: int) -> Iterator[Row]:
    """The rows; the best of `repeats` runs of each."""
    engine = Engine.load(str(model), options)
    assert engine.tokenizer is not None
    text = ModelText(engine.tokenizer.document)
    grammar = make_grammar(Structure(json_schema=json.dumps(PEOPLE)), None)
    prompt = tuple(text.prompts.encode_chat([Message("user", "Describe people as JSON.")]).token_ids)
    for name, temperature in ((f"structured_{SEQUENCES}", 0.7), (f"structured_{SEQUENCES}_greedy", 0.0)):
        seconds: dict[str, list[float]] = {grammar: [], "": []}
        for _ in range(repeats + 1):
            for each, found in seconds.items():
                found.append(_run(engine, prompt, temperature, each))
        kept, free = (SEQUENCES / min(found[1:]) for found in seconds.values())  # the first warms up
        yield compare(name, kept, "tokens/s", "free text", free)
    engine.close()


def _run(engine: Engine, prompt: tuple[int, ...], temperature: float, grammar: str) -> float:
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
        started = time.perf_counter()
        updates = engine.step()
        if len(updates) == SEQUENCES:
            steps.append(time.perf_counter() - started)
    return median(steps[1:])
