"""vLLM beside ours, on the same card, in a process of its own with its own PYTHONPATH: this file is run by both.

`python peer.py MODEL MOST_TOKENS` loads a folder's configuration with random weights and answers lines of JSON.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

# Its pool, which is said so that it need not look how much memory others leave: it gives up where they free some
# meanwhile, as ours does when it measures itself.
KV_BYTES = 24 << 30
LEAST_FREE = 0.4  # of the card's memory, that it wants to see at its start
END_SECONDS = 20.0
CAUSE = re.compile(r"\b\w*(Error|Exception): .")


class Peer:
    """The child process; its start takes a minute or two, in which others may do what isn't measured."""

    def __init__(self, folder: Path, python_path: str, context: int, script: str = __file__) -> None:
        """Starts it. `python_path`: where vLLM is installed; `context`: tokens of its longest sequence."""
        environment = {**os.environ, "PYTHONPATH": python_path}
        command = [sys.executable, script, str(folder), str(context)]
        self._log = folder / "vllm.log"
        with self._log.open("w", encoding="utf-8") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
            self._process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        self.name = ""

    def ready(self) -> None:
        """Wait for it. Raises RuntimeError where it can't be had."""
        answer = self._read()
        self.name = f"vllm {answer['version']}"

    def seconds(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> float:
        """As ours."""
        return float(self.ask({"prompts": prompts, "new_tokens": new_tokens})["seconds"])

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer to a line of JSON."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it, and what it has started: vLLM's engine is a process of its own, and holds the card's memory."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()  # it ends by itself
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            said = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise RuntimeError("\n".join((f"vLLM's process ended with status {status}:", *causes(said))))
        answer: dict[str, Any] = json.loads(line)
        return answer


def causes(said: Sequence[str], most: int = 8) -> list[str]:
    """Of a log the lines that name an error, each once, for the last often says only that there was one; without any
    its last lines.
    """
    found = dict.fromkeys(line[match.start() :] for line in said if (match := CAUSE.search(line)))
    return (list(found) or list(said))[-most:]


def main(folder: str, context: str) -> None:
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
        gpu_memory_utilization=LEAST_FREE,
        kv_cache_memory_bytes=KV_BYTES,
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
