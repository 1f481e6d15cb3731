"""How much more memory loading takes at its peak than stays, for each format of weights and executor.

    python -m bench.loading [--layers N] [--only NAME]… [--executor NAME]…

Each model is loaded in a process of its own. `stays` is what is resident behind it less what was before it: the
executor's weights, and pages of the model's files that are still mapped, which count once. `peak` is the kernel's own
mark of the most that was resident (VmHWM) less the same. Both have the caches of the smallest context that is served.
The ratio is what stays over the peak: 1 / 1.15 = 0.87 at least.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.command import parser_of, positive, run
from bench.report import Row, compare, publish
from safetensors.torch import save_file
from tests.support.quantised_folders import WAYS
from tests.support.tiny_models import TinyShape, random_tensors, write_folder, write_gguf

NAMES = (
    *("gptq", "gptq 8 bits, columns", "awq", "int4 groups", "int8 packed channels", "int8 channels"),
    *("fp8 tiles", "fp8 tensors", "bf16", "f32"),
)
GGUF = ("F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q5_1", "MXFP4")
EXECUTORS = ("persistent", "eager")
MOST = 1.15


def shape_of(layers: int) -> TinyShape:
    """12 million weights a layer, of which the largest matrix has a fifth: small beside 30 layers."""
    return TinyShape(
        vocabulary=512, hidden=1024, layers=layers, heads=16, kv_heads=16, head_dim=64, intermediate=2560, context=64
    )


def write(folder: Path, name: str, layers: int) -> Path:
    """A model whose layers are alike, as a folder or a GGUF file."""
    if name in GGUF:
        folder.mkdir()
        write_gguf(folder / "model.gguf", shape_of(layers), name)
        return folder / "model.gguf"
    one, stored = random_tensors(shape_of(1)), dict[str, torch.Tensor]()
    for key, tensor in one.items():
        parts = {key: torch.from_numpy(tensor)}
        if name == "bf16":
            parts = {key: parts[key].bfloat16()}
        elif "_proj." in key and name in WAYS:
            made, _ = WAYS[name].make(tensor)
            parts = {key.removesuffix(".weight") + suffix: part.contiguous() for suffix, part in made.items()}
        for part, data in parts.items():
            places = [part.replace("layers.0.", f"layers.{layer}.") for layer in range(layers)]
            stored |= {place: data.clone() for place in dict.fromkeys(places)}
    write_folder(folder, shape_of(layers), {})
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    stated: dict[str, Any] = {"quantization_config": dict(WAYS[name].config)} if name in WAYS else {}
    (folder / "config.json").write_text(json.dumps(shape_of(layers).config() | stated))
    return folder


def status(key: str) -> int:
    """A size of this process in bytes, by its name in /proc."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def measure(path: str, executor: str) -> dict[str, int]:
    """Load the model in this process; bytes that stay, and the peak."""
    from polyfleet.engine.loader import load
    from polyfleet.executors import eager, persistent
    from polyfleet.wire.options import EngineOptions

    _ = eager, persistent  # imported before anything is measured
    torch.ones(64, 64) @ torch.ones(64, 64)
    np.ones(4).sum()
    gc.collect()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    options = EngineOptions(
        device="cpu", executor=executor, context_length=32, kv_cache_tokens=32, max_sequences=1, step_tokens=16
    )
    parts = load(path, options, lambda share, phase: None)
    peak, stays = status("VmHWM") - before, status("VmRSS") - before
    parts.executor.close()
    return {"stays": stays, "peak": peak}


def rows(names: Sequence[str], executors: Sequence[str], layers: int) -> Iterator[Row]:
    """Each format's file, and with each executor the peak beside what stays."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            model = write(Path(folder) / "model", name, layers)
            size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            yield Row(f"{name}, file", size / 1e6, "MB")
            for each in executors:
                command = [sys.executable, "-m", "bench.loading", "--load", str(model), "--executor", each]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                peak, stays = found["peak"] / 1e6, found["stays"] / 1e6
                yield compare(f"{name}, {each}", peak, "MB at most", "stays", stays, lower_is_better=True)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--layers", type=positive, default=40, help="(default: 40)")
    parser.add_argument("--only", action="append", choices=(*NAMES, *GGUF), help="a format (default: all)")
    parser.add_argument("--executor", action="append", choices=EXECUTORS, help="(default: all)")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        print(json.dumps(measure(given.load, given.executor[0])))
    else:
        publish(rows(given.only or (*NAMES, *GGUF), given.executor or EXECUTORS, given.layers), given.json)


if __name__ == "__main__":
    run(main)
