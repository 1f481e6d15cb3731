"""Contenders seen from the benchmark: what can be started, with which settings, and one running process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import IO, Any

from bench.contenders.workload import Setting, Workload

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"transformers": "transformers", "llama.cpp": "llama_cpp", "openvino": "openvino_genai"}
INSTALL = {
    "transformers": "pip install transformers accelerate",
    "llama.cpp": "pip install llama-cpp-python",
    "openvino": "pip install openvino-genai",
}


class ContenderError(RuntimeError):
    """A contender can't do what was asked; one sentence."""


def unavailable(peer: str, model: Path, device: str) -> str:
    """Why a peer can't take part; empty when it can."""
    if find_spec(PACKAGES[peer]) is None:
        return f"not installed ({INSTALL[peer]})"
    if peer != "transformers" and device != "cpu":
        return f"measured on the CPU only, not on {device}"
    if peer == "llama.cpp" and model.is_dir():
        return "reads GGUF files only"
    return ""


def sweep(peer: str, device: str, threads: int) -> list[Setting]:
    """The settings that a peer is tried with; the best of each workload counts."""
    axes: dict[str, tuple[str | int, ...]]
    if peer == "transformers":
        dtypes = ("float32", "bfloat16") if device == "cpu" else ("bfloat16", "float16")
        axes = {"dtype": dtypes, "attention": ("sdpa", "eager"), "device": (device,)}
    elif peer == "llama.cpp":
        axes = {"flash_attention": (0, 1), "ubatch": (128, 512)}
    else:
        axes = {"precision": ("default", "f32"), "batched_tokens": (256, 2048)}
    return [dict(zip(axes, values, strict=True), threads=threads) for values in product(*axes.values())]


def describe(setting: Setting) -> str:
    """A setting on one line."""
    return " ".join(f"{key}={value}" for key, value in setting.items())


@dataclass
class Running:
    """A contender's process that has loaded its model."""

    process: subprocess.Popen[str]
    clock: str

    def measure(self, workload: Workload, seed: int) -> float:
        """Tokens per second of `clock`; raises ContenderError."""
        self._write({"workload": workload.name, "seed": seed, "clock": self.clock})
        return float(self.read()["rate"])

    def _write(self, order: dict[str, Any]) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise ContenderError("its process has ended") from error

    def read(self) -> dict[str, Any]:
        """The next answer; raises ContenderError for an error or the end."""
        stdout = self.process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise ContenderError(f"its process ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer


@contextmanager
def running(
    kind: str, model: Path, setting: Setting, clock: str = "wall", log: IO[str] | None = None
) -> Iterator[Running]:
    """Start a contender and wait until its model is loaded; ends it afterwards. Its own output goes to `log`."""
    command = [sys.executable, "-m", "bench.contenders.child", kind, str(model), json.dumps(dict(setting))]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log if log is not None else subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            contender = Running(process, clock)
            contender.read()
            yield contender
        finally:
            process.kill()
