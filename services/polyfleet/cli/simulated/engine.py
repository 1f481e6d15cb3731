"""The engine process of a simulated worker: `simulator.engine` in real time, behind the surface of a real engine.

The model's path names the fleet's file and the worker in it, `unlike.yaml#fast-0`.
"""

import time
import zlib
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from polyfleet.engine.batching.checks import check_lengths, check_request
from polyfleet.engine.facts import EngineFacts, EngineStatus, LoadedAdapter
from polyfleet.serving.engine_process import main
from polyfleet.serving.engine_protocol import Progress
from polyfleet.simulator.engine import Job, SimulatedEngine
from polyfleet.simulator.fleet_file import Group, read_fleet
from polyfleet.simulator.tokens import VOCABULARY, fingerprint, mark, token, tokenizer_document
from polyfleet.simulator.trace import Arrival
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.features import EMBEDDINGS, LOGPROBS
from polyfleet.wire.hashing import grain_numbers
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

HIDDEN_SIZE = 8
LOGPROB = -0.5  # of every token, and one less for each alternative


@dataclass(frozen=True)
class Assets:
    """The tokenizer's document and its hash."""

    document: bytes = field(default_factory=tokenizer_document)

    @property
    def hash(self) -> str:
        """sha256 of the document, in hex."""
        return sha256(self.document).hexdigest()


def load(path: str, options: EngineOptions, progress: Progress) -> "TimedEngine":
    """The worker that the path names. Raises ValueError."""
    file, _, worker_id = path.rpartition("#")
    workers = {each.worker_id: each.group for each in read_fleet(Path(file)).each_worker()}
    if worker_id not in workers:
        raise ValueError(f"{file}: there is no worker {worker_id!r:.80}.")
    return TimedEngine(worker_id, workers[worker_id])


class TimedEngine:
    """Steps take as long as simulated; lateness within one busy spell is caught up."""

    alarm = None
    canary = None

    def __init__(self, worker_id: str, group: Group) -> None:
        self._engine = SimulatedEngine(worker_id, group, zlib.crc32(worker_id.encode()))
        self.tokenizer = Assets()
        self.facts = EngineFacts(
            name="simulated",
            architecture="simulated",
            context_length=group.context_length,
            vocabulary_size=VOCABULARY,
            hidden_size=HIDDEN_SIZE,
            block_size=group.block_size,
            num_blocks=group.kv_tokens // group.block_size,
            max_sequences=group.max_sequences,
            dtype="simulated",
            end_token_ids=(),
            fingerprint=fingerprint(),
            features=(LOGPROBS, EMBEDDINGS),
        )
        self._sequences: dict[str, _Sequence] = {}
        self._ids: dict[int, str] = {}  # by job
        self._counts = EngineStatus()
        self._due = 0.0  # when the last step was to end; 0: nothing went on

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._engine.has_work

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. Raises FieldError."""
        check_request(request, VOCABULARY)
        check_lengths(request, self.facts.context_length)
        sequence = _Sequence(request, self._job(request), mark(request.prompt_ids), len(request.generated_ids))
        self._sequences[request.sequence_id] = sequence
        self._ids[sequence.job.number] = request.sequence_id
        self._engine.add(sequence.job)
        self._count(admitted=1, prompt_tokens=len(request.prompt_ids))

    def _job(self, request: SequenceRequest) -> Job:
        prompt, done = len(request.prompt_ids), len(request.generated_ids)
        most = self.facts.context_length - prompt
        left = 1 if request.pooling else min(request.max_tokens or most, most) - done
        grains = grain_numbers(request.prompt_ids, request.cache_salt)
        return Job(Arrival(time.monotonic(), prompt + done, left, grains), self._counts.admitted)

    def cancel(self, sequence_id: str) -> bool:
        """End a sequence; whether it was there."""
        known = sequence_id in self._sequences
        if known:
            self._forget(sequence_id)
            self._count(cancelled=1)
        return known

    def _forget(self, sequence_id: str) -> None:
        job = self._sequences.pop(sequence_id).job
        del self._ids[job.number]
        self._engine.remove(job)

    def add_adapter(self, path: str) -> LoadedAdapter:
        """It has none. Raises ValueError."""
        raise ValueError(f"{path}: a simulated worker has no adapters")

    def drop_adapter(self, fingerprint: str) -> None:
        """There is none."""

    def step(self) -> list[SequenceUpdate]:
        """One step, as long as it takes."""
        now = time.monotonic()
        self._due = (self._due or now) + self._engine.begin_step()
        waiting = {job.number for job in self._engine.waiting}
        for each in self._sequences.values():
            if each.queue_seconds is None and each.job.number not in waiting:
                each.queue_seconds = now - each.job.arrival.seconds
        time.sleep(max(0.0, self._due - now))
        ended = self._engine.end_step(time.monotonic())
        moved = [(job, False) for job in self._engine.decoding] + [(job, True) for job in ended]
        updates = [self._advance(self._sequences[self._ids[job.number]], over) for job, over in moved]
        if not self._engine.has_work:
            self._due = 0.0
        self._count(steps=1, step_rows=len(updates))
        return updates

    def _advance(self, sequence: "_Sequence", ended: bool) -> SequenceUpdate:
        """Its next token, or its end."""
        request, begun = sequence.request, sequence.begun()
        reason = FinishReason.LENGTH if ended else None
        new: tuple[SampledToken, ...] = ()
        if request.pooling is not None:
            reason = FinishReason.STOP
        else:
            number = token(sequence.mark, sequence.done, request.choice)
            if number in request.stop_token_ids and sequence.done >= request.min_tokens:
                reason = FinishReason.STOP
            else:
                new = (_sampled(number, request.logprobs or 0),)
                sequence.done += 1
                self._count(generated_tokens=1)
        if reason is not None:
            self._forget(request.sequence_id)
            self._count(finished=1)
        vector = sequence.vector() if request.pooling is not None else ()
        return SequenceUpdate(request.sequence_id, new, reason, "", *begun, embedding=vector)

    def status(self) -> EngineStatus:
        """How it is doing."""
        running, waiting, tokens, free = self._engine.load
        rates = self._engine.rates
        base, per_sequence, per_token = rates.decode_step.seconds
        return self._counts._replace(
            running_sequences=running,
            waiting_sequences=waiting,
            waiting_prefill_tokens=tokens,
            free_blocks=free,
            prefill_tokens_per_second=rates.prefill.per_second,
            decode_tokens_per_second=rates.decode.per_second,
            step_seconds=self._engine.seconds,
            decode_step_seconds=base,
            decode_step_seconds_per_sequence=per_sequence,
            decode_step_seconds_per_token=per_token,
        )

    def woken(self) -> None:
        """Nothing wakes it but commands."""

    def check(self) -> None:
        """Raise AssertionError unless what is idle holds nothing."""
        assert self.has_work or self._engine.load[3] == self.facts.num_blocks, "tokens are held for no sequence"

    def _count(self, **more: int) -> None:
        self._counts = self._counts._replace(**{name: getattr(self._counts, name) + n for name, n in more.items()})


@dataclass(eq=False, slots=True)
class _Sequence:
    """One sequence and how far it is."""

    request: SequenceRequest
    job: Job
    mark: int
    done: int  # tokens of the answer, wherever
    queue_seconds: float | None = None  # None: it waits
    told: bool = False

    def begun(self) -> tuple[int | None, float | None]:
        """With the first news: prompt tokens that were cached, seconds until the first step."""
        told, self.told = self.told, True
        return (None, None) if told else (self.job.cached_tokens, self.queue_seconds)

    def vector(self) -> tuple[float, ...]:
        """An embedding of its prompt; never all zero."""
        return tuple(float(token(self.mark, index)) for index in range(HIDDEN_SIZE))


def _sampled(number: int, alternatives: int) -> SampledToken:
    others = tuple((number + place) % VOCABULARY for place in range(alternatives))
    return SampledToken(number, LOGPROB, others, tuple(LOGPROB - place for place in range(alternatives)))


if __name__ == "__main__":
    main(obj=load)
