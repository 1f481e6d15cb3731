"""An engine without a model for tests of the worker process; `fake_engine_worker` is a worker with it. No torch.

What it does is written in the model's path: `fake:step_seconds=0.01,max_sequences=2`. Tokens are `fake_tokens`.

    load_seconds=S      loading takes so long, in ten reports
    loading_while=PATH  loading does not end for as long as this file exists
    unusable=1          loading fails as for a bad file;  absent=1  as for an accelerator that is not there
    die_loading=1       the process is gone in the middle of loading
    step_seconds=S      each step takes so long
    step_tokens=N       tokens that each sequence gets in a step
    max_sequences=N     that run at once
    leak=1              the books do not balance once anything has run
    hash=0              no tokenizer
    prefill_rate=N      it says that it prefills so many tokens a second
    canary=0            it has no canary
    wrong_while=PATH    tokens are wrong by one for as long as this file exists
    stuck_while=PATH    steps do not end for as long as this file exists
A prompt that begins with CRASH kills the process in the next step, one that begins with BREAK raises there, one that
begins with FAIL ends with an error of its own.
"""

import os
import signal
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from tests.support.fake_tokens import fake_adapted, fake_embedding, fake_fingerprint, fake_token, fake_tokens

from polyfleet.engine.batching.checks import check_request
from polyfleet.engine.canary.canary import Canary, CanaryReference
from polyfleet.engine.facts import EngineFacts, EngineStatus, LoadedAdapter
from polyfleet.serving.engine_process import main
from polyfleet.serving.engine_protocol import Progress
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

CRASH, BREAK, FAIL = 901, 902, 903
VOCABULARY, HIDDEN, CONTEXT, BLOCK, BLOCKS = 1000, 8, 100_000, 16, 1000
CANARY = CanaryReference((11, 12, 13) * 4, tuple(fake_tokens([11, 12, 13] * 4, 8)), (9.0,) * 8)
DOCUMENT = b'{"tokenizer": null}' * 100_000  # 1.9 MB: two chunks


@dataclass(frozen=True)
class Script:
    """The path's options."""

    load_seconds: float = 0.0
    unusable: float = 0.0
    absent: float = 0.0
    die_loading: float = 0.0
    step_seconds: float = 0.0
    step_tokens: float = 1.0
    max_sequences: float = 4.0
    leak: float = 0.0
    hash: float = 1.0
    prefill_rate: float = 0.0
    canary: float = 1.0
    wrong_while: str = ""
    stuck_while: str = ""
    loading_while: str = ""


@dataclass(frozen=True)
class FakeAssets:
    """A tokenizer's document and its hash."""

    document: bytes = DOCUMENT
    hash: str = sha256(DOCUMENT).hexdigest()


def load(path: str, options: EngineOptions, progress: Progress) -> "FakeEngine":
    """Do what the path says."""
    given = dict(part.split("=") for part in path.partition(":")[2].split(",") if part)
    wanted: dict[str, Any] = {k: value if k.endswith("_while") else float(value) for k, value in given.items()}
    script = Script(**wanted)
    for step in range(10):
        progress(step / 10, "reading weights")
        time.sleep(script.load_seconds / 10)
    while os.path.exists(script.loading_while):
        time.sleep(0.01)
    if script.die_loading:
        os._exit(7)
    if script.unusable:
        raise ValueError(f"{path} is truncated: it ends in the middle of a tensor.")
    if script.absent:
        raise RuntimeError("no such accelerator here\nand a second line")
    return FakeEngine(script, options)


class FakeEngine:
    """The surface of `polyfleet.engine.Engine` that the engine process uses."""

    alarm: int | None = None

    def __init__(self, script: Script, options: EngineOptions) -> None:
        self._script = script
        self.facts = EngineFacts(
            name="fake", architecture="fake", context_length=options.context_length or CONTEXT,
            vocabulary_size=VOCABULARY, hidden_size=HIDDEN, block_size=BLOCK, num_blocks=BLOCKS,
            max_sequences=int(script.max_sequences), dtype=options.dtype, end_token_ids=(0,),
        )  # fmt: skip
        self.tokenizer = FakeAssets() if script.hash else None
        self.canary = Canary(CANARY.prompt_ids, CANARY) if script.canary else None
        self._sequences: dict[str, SequenceRequest] = {}
        self._status = EngineStatus(free_blocks=BLOCKS, prefill_tokens_per_second=script.prefill_rate)

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def add(self, request: SequenceRequest) -> None:
        check_request(request, VOCABULARY)
        if len(request.prompt_ids) >= self.facts.context_length:
            raise FieldError("prompt_ids", "is too long")
        self._sequences[request.sequence_id] = request
        self._count(admitted=1, prompt_tokens=len(request.prompt_ids))

    def cancel(self, sequence_id: str) -> bool:
        known = self._sequences.pop(sequence_id, None) is not None
        self._count(cancelled=int(known))
        return known

    def add_adapter(self, path: str) -> LoadedAdapter:
        """Of any path but one that says `bad`; its fingerprint is made of it."""
        if "bad" in path:
            raise ValueError(f"{path}: the folder has no adapter_config.json, so it is no adapter")
        return LoadedAdapter(fake_fingerprint(path), 8)

    def drop_adapter(self, fingerprint: str) -> None:
        pass

    def step(self) -> list[SequenceUpdate]:
        time.sleep(self._script.step_seconds)
        while os.path.exists(self._script.stuck_while):
            time.sleep(0.01)
        running = list(self._sequences.values())[: self.facts.max_sequences]
        self._count(steps=1, step_seconds=self._script.step_seconds + 0.001, step_rows=len(running))
        return [self._advance(request) for request in running]

    def status(self) -> EngineStatus:
        running = min(len(self._sequences), self.facts.max_sequences)
        waiting = len(self._sequences) - running
        free = BLOCKS - running - int(self._script.leak)
        return self._status._replace(running_sequences=running, waiting_sequences=waiting, free_blocks=free)

    def woken(self) -> None:
        pass

    def check(self) -> None:
        assert not self._script.leak, "1 block has no owner"

    def _advance(self, request: SequenceRequest) -> SequenceUpdate:
        first = request.prompt_ids[0]
        prompt = fake_adapted(request.prompt_ids, request.adapter)
        if first == CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        if first == BREAK:
            raise RuntimeError("the device fell off the bus")
        if first == FAIL:
            return self._end(SequenceUpdate(request.sequence_id, error="not finite"), failed=1)
        if request.pooling is not None:
            vector = tuple(fake_embedding(prompt, HIDDEN))
            return self._end(SequenceUpdate(request.sequence_id, (), FinishReason.STOP, embedding=vector), finished=1)
        done = request.generated_ids
        assert request.max_tokens is not None
        count = min(int(self._script.step_tokens), request.max_tokens - len(done))
        new = [fake_token(prompt, len(done) + k, request.choice, VOCABULARY) for k in range(count)]
        if os.path.exists(self._script.wrong_while):
            new = [(token + 1) % VOCABULARY for token in new]
        tokens = tuple(self._sampled(token, request) for token in new)
        self._sequences[request.sequence_id] = replace(request, generated_ids=(*done, *new))
        self._count(generated_tokens=count)
        begun = () if done else (len(request.prompt_ids) // 2, 0.25)
        if len(done) + count >= request.max_tokens:
            return self._end(SequenceUpdate(request.sequence_id, tokens, FinishReason.LENGTH, "", *begun), finished=1)
        return SequenceUpdate(request.sequence_id, tokens, None, "", *begun)

    def _sampled(self, token: int, request: SequenceRequest) -> SampledToken:
        alternatives = request.logprobs or 0
        return SampledToken(token, -0.5, tuple(range(alternatives)), (-1.0,) * alternatives)

    def _end(self, update: SequenceUpdate, **counts: int) -> SequenceUpdate:
        del self._sequences[update.sequence_id]
        self._count(**counts)
        return update

    def _count(self, **more: float) -> None:
        counts = {name: getattr(self._status, name) + value for name, value in more.items()}
        self._status = self._status._replace(**counts)


if __name__ == "__main__":
    main(obj=load)
