"""Benchmark of adapters: decoding with one LoRA adapter for each sequence beside decoding with none, in one engine.

    python bench/adapters.py                    # 16 sequences, 16 adapters of rank 16, the model of `make serve`
    python bench/adapters.py --targets q_proj,v_proj --rank 64 --device cuda
    python bench/adapters.py --device cuda --shape llama3_8b --layers 8 --tokens 96      # random weights in bfloat16

Rounds alternate, so that a busy machine slows both alike; medians are compared, of wall time and of CPU time (which
other processes hardly touch where --threads is 1). Adapters are random, made in a
temporary folder; nothing is installed or downloaded. Needs torch, numpy, safetensors and gguf beside the source tree.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a file

from bench.card.shapes import SHAPES, write_model
from bench.command import parser_of, positive, run
from bench.report import Row, compare, publish

from polyfleet.cli.stack.settings import bundled_model
from polyfleet.engine import Engine
from polyfleet.engine.choosing.machines import open_machine
from polyfleet.loading.load import load_model
from polyfleet.models.registry import weight_shapes
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

LINEARS = {
    "q_proj": ("self_attn", "q"),
    "k_proj": ("self_attn", "k"),
    "v_proj": ("self_attn", "v"),
    "o_proj": ("self_attn", "o"),
    "gate_proj": ("mlp", "gate"),
    "up_proj": ("mlp", "up"),
    "down_proj": ("mlp", "down"),
}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, default=None, help="GGUF file or Hugging Face folder (default: SmolLM2)")
    parser.add_argument("--shape", choices=tuple(SHAPES), help="random weights in bfloat16 instead of a model's")
    parser.add_argument("--layers", type=int, default=0, help="of a shape; 0: as many as it has")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument(
        "--adapters", type=positive, default=16, help="how many (default 16), shared out over the sequences"
    )
    parser.add_argument("--sequences", type=positive, default=16)
    parser.add_argument("--rank", type=positive, default=16)
    parser.add_argument("--targets", default=",".join(LINEARS), help="linears that they change (default: all)")
    parser.add_argument(
        "--tokens", type=positive, default=32, help="that each sequence decodes in a round (default 32)"
    )
    parser.add_argument("--repeats", type=positive, default=5)
    wanted = parser.parse_args()
    if unknown := set(wanted.targets.split(",")) - LINEARS.keys():
        parser.error(f"--targets: {', '.join(sorted(unknown))} is not among {', '.join(LINEARS)}")
    return wanted


def write_adapter(folder: Path, shapes: dict[str, tuple[int, int]], targets: list[str], rank: int, seed: int) -> Path:
    """A random PEFT folder."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for target in targets:
        block, name = LINEARS[target]
        for weight, (rows, columns) in shapes.items():
            layer = weight.removeprefix("layers.").removesuffix(f".{name}")
            if layer.isdigit():
                module = f"base_model.model.model.layers.{layer}.{block}.{target}"
                tensors[f"{module}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) / columns**0.5
                tensors[f"{module}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * 0.01
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def decode(engine: Engine, adapters: list[str], sequences: int, tokens: int) -> tuple[float, float]:
    """Tokens a second of wall time and of CPU time, of steps in which all sequences decode."""
    for number in range(sequences):
        adapter = adapters[number % len(adapters)] if adapters else ""
        prompt = (number + 1, *range(20, 36))
        engine.add(SequenceRequest(f"s{number}", prompt, max_tokens=tokens, ignore_eos=True, adapter=adapter))
    while engine.status().waiting_sequences or engine.status().waiting_prefill_tokens > sequences:
        engine.step()
    engine.step()
    before, began, busy = engine.status().generated_tokens, time.perf_counter(), time.process_time()
    while len(engine.step()) == sequences and engine.has_work:
        pass
    count = engine.status().generated_tokens - before
    rates = count / (time.perf_counter() - began), count / (time.process_time() - busy)
    while engine.has_work:
        engine.step()
    return rates


def main() -> None:
    """Measure and print."""
    wanted = parse()
    with tempfile.TemporaryDirectory() as folder:
        if wanted.shape:
            shape = SHAPES[wanted.shape]
            shape = replace(shape, layers=wanted.layers or shape.layers)
            wanted.model = write_model(shape, Path(folder), open_machine(wanted.device)[0].device)
        measure(wanted)


def measure(wanted: argparse.Namespace) -> None:
    """Rounds in turn, and their medians."""
    options = EngineOptions(
        device=wanted.device, dtype=wanted.dtype, executor=wanted.executor, threads=wanted.threads,
        max_sequences=wanted.sequences, context_length=512, max_adapters=wanted.adapters, max_rank=wanted.rank,
        prefix_cache=False, kv_cache_tokens=512 * wanted.sequences,
    )  # fmt: skip
    path = wanted.model or bundled_model()
    engine = Engine.load(str(path), options)
    with tempfile.TemporaryDirectory() as folder:
        shapes = weight_shapes(load_model(path).config)
        folders = [
            write_adapter(Path(folder) / str(number), dict(shapes), wanted.targets.split(","), wanted.rank, number)
            for number in range(wanted.adapters)
        ]
        adapters = [engine.add_adapter(str(each)).fingerprint for each in folders]
    rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for repeat in range(-1, wanted.repeats):
        for adapted in (False, True):
            rate = decode(engine, adapters if adapted else [], wanted.sequences, wanted.tokens)
            if repeat >= 0:
                rates[adapted].append(rate)
    what = f"{wanted.adapters} adapters of rank {wanted.rank} on {wanted.targets}"
    print(f"{engine.facts.executor}, {wanted.sequences} sequences, {what}")
    publish(rows(rates), wanted.json)


def rows(rates: dict[bool, list[tuple[float, float]]]) -> Iterator[Row]:
    """By each clock, with adapters (True) beside without; what each round says is printed."""
    for clock, name in enumerate(("wall", "cpu")):
        none, some = ([each[clock] for each in rates[adapted]] for adapted in (False, True))
        print(f"{name}: rounds", " ".join(f"{b / a:.3f}" for a, b in zip(none, some, strict=True)))
        yield compare(f"adapters_{name}", median(some), "tokens/s", "none", median(none))


if __name__ == "__main__":
    run(main)
