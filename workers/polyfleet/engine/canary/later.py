"""A canary whose answer is computed beside an engine that serves already.

That of a large model takes as long as all else that loading does. A process of its own computes it on the host, which
yields to others: `polyfleet.engine.canary.reference`.
"""

import json
import logging
import subprocess
import sys

from polyfleet.engine.canary.canary import NUM_TOKENS, Canary, CanaryReference, candidate_prompts, make_canary
from polyfleet.engine.canary.reference import Source
from polyfleet.models.config import ModelConfig

log = logging.getLogger(__name__)


def starts_later(source: Source, device: str) -> bool:
    """Whether the answer is to be computed, by cores that are not the device itself."""
    return source.computed and device.partition(":")[0] != "cpu"  # a name that torch need not know


class CanaryLater:
    """Owns the process, which ends with its work, by `close`, or with this one."""

    def __init__(self, path: str, context_length: int, prompt_ids: tuple[int, ...]) -> None:
        """Starts it, for the model at `path` as it is served where such a context is asked for (0: its own)."""
        self._canary = Canary(prompt_ids, awaited=True)
        command = [sys.executable, "-m", "polyfleet.engine.canary.reference", path, str(context_length)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)  # it ends where the first is closed
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]

    @classmethod
    def of(cls, path: str, config: ModelConfig, asked: int, context_length: int) -> "CanaryLater | None":
        """Where a context of `asked` tokens was asked for; None where the one that came of it has no room for one."""
        prompt = candidate_prompts(config.vocabulary_size)[0]
        return cls(path, asked, prompt) if context_length >= len(prompt) + NUM_TOKENS else None

    def now(self) -> Canary:
        """With the answer where it is there; where it can't be computed, which is logged, without one for good."""
        process = self._process
        if process is not None and process.poll() is not None:
            self._process = None
            said, problem = process.communicate()
            self._canary = self._with_answer(said) if process.returncode == 0 else Canary(self._canary.prompt_ids)
            if process.returncode:
                lines = problem.decode(errors="replace").strip().splitlines() or [f"status {process.returncode}"]
                log.warning("the canary's answer can't be computed: %s", lines[-1])
        return self._canary

    def wait(self, seconds: float) -> None:
        """Until it has computed; raises subprocess.TimeoutExpired."""
        if self._process is not None:
            self._process.wait(seconds)

    def close(self) -> None:
        """End the process, if it still computes."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _with_answer(self, said: bytes) -> Canary:
        entry = json.loads(said)
        reference = CanaryReference(*(tuple(entry[name]) for name in ("prompt_ids", "token_ids", "margins")))
        return make_canary(reference.prompt_ids, reference)
