"""vLLM beside ours, on the same card, in a process of its own with its own PYTHONPATH: this file is run by both.

`python peer.py MODEL MEMORY MOST_TOKENS` loads a folder's configuration with random weights and answers lines of JSON.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


class Peer:
    """The child process; its start takes a minute or two, in which others may do what isn't measured."""

    def __init__(self, folder: Path, python_path: str, memory: float, context: int) -> None:
        """`memory`: its share of the card's."""
        environment = {**os.environ, "PYTHONPATH": python_path}
        command = [sys.executable, __file__, str(folder), str(memory), str(context)]
        self._log = folder / "vllm.log"
        with self._log.open("w", encoding="utf-8") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
            self._process = subprocess.Popen(command, env=environment, **pipes)
        self.name = ""

    def ready(self) -> None:
        """Wait for it. Raises RuntimeError where it can't be had."""
        answer = self._read()
        self.name = f"vllm {answer['version']}"

    def seconds(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> float:
        """As ours."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text(encoding="utf-8").splitlines()[-20:]
            raise RuntimeError("\n".join((f"vLLM's process ended with status {self._process.wait()}:", *said)))
        answer: dict[str, Any] = json.loads(line)
        return answer


def main(folder: str, memory: str, context: str) -> None:
    """Load, then answer."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not get among the answers
    vllm: Any = import_module("vllm")

    model = vllm.LLM(
        model=folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=int(context),
        max_num_seqs=256,
        enable_prefix_caching=False,
        seed=0,
        gpu_memory_utilization=float(memory),
    )
    answers.write(json.dumps({"version": vllm.__version__}) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        prompts = [{"prompt_token_ids": each} for each in order["prompts"]]
        count = order["new_tokens"]
        params = vllm.SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=count, detokenize=False)
        started = time.perf_counter()
        found = model.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        assert all(len(each.outputs[0].token_ids) == count for each in found)
        answers.write(json.dumps({"seconds": seconds}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
