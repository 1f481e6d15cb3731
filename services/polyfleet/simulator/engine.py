"""SimulatedEngine: what a worker's batcher would do in which time, step by step, without a model. Pure.

Continuous batching: each step decodes one token of every running sequence and computes up to `step_tokens` of prompts,
first come first. A sequence gets a slot and room for its whole length in the KV cache when it is admitted; of its
prompt it computes what is not in the prefix cache, one token at least.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polyfleet.placement.fleet import Role, Worker, WorkerState
from polyfleet.placement.prefixes import PrefixMap
from polyfleet.simulator.fleet_file import Group
from polyfleet.simulator.trace import Arrival
from polyfleet.wire.hashing import PLACEMENT_GRAIN
from polyfleet.wire.rates import Rates

MODEL = "simulated"
GAPS = 10  # steps of a millisecond in which gaps between tokens are counted
LEAST_PROMPT = 16  # tokens of prompts in a step, however long it takes


@dataclass(eq=False, slots=True)
class Job:
    """One request on its way. Times are seconds of the trace; `left` is what is still to be prefilled."""

    arrival: Arrival
    number: int
    worker: str = ""
    first: float = 0.0
    end: float = 0.0
    cached_tokens: int = 0
    left: int = 0
    moves: int = 0
    prefiller: str = ""  # the worker that computes its prompt, where that is another one

    @property
    def room(self) -> int:
        """Tokens that it comes to hold."""
        return self.arrival.prompt_tokens + self.arrival.output_tokens


class SimulatedEngine:
    """One worker. `begin_step` says how long the next step takes, `end_step` gives the jobs that it finished."""

    def __init__(self, worker_id: str, group: Group, seed: int = 0) -> None:
        self.worker_id, self.group = worker_id, group
        self.pace = group.pace
        self.rates = Rates()
        self.seconds = 0.0  # of all steps so far
        self._cache = PrefixMap(max(1, group.kv_tokens // PLACEMENT_GRAIN))
        self._draw = random.Random(seed)
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[int, int, Job]] = []  # by the step in which they end
        self._held = 0  # tokens in the KV cache
        self._reserved = 0  # room of what was admitted
        self._steps = 0
        self._plan: list[tuple[Job, int]] = []
        self._duration = 0.0
        self._importing = 0.0  # seconds that prompts take which have come, before the next step
        self._has_fetched = False
        self.gaps = Counter[int]()  # by milliseconds / GAPS from token to token: of how many tokens

    def add(self, job: Job) -> None:
        """A request has come."""
        job.worker, job.left = self.worker_id, job.arrival.prompt_tokens
        self._waiting.append(job)

    def take_in(self, job: Job) -> None:
        """A request has come whose prompt another worker has computed: it is in the prefix cache, but for its last
        token."""
        job.worker, job.left = self.worker_id, 1
        job.cached_tokens = job.arrival.prompt_tokens - 1
        self._importing += job.cached_tokens / self.group.import_tokens_per_second
        self._has_fetched = True
        self._waiting.append(job)

    def clear(self) -> list[Job]:
        """It has failed: its jobs, and nothing cached any more."""
        lost = list(self.jobs)
        self._waiting.clear()
        self._prefilling.clear()
        self._decoding.clear()
        self._cache.forget(self.worker_id)
        self._held = self._reserved = 0
        return lost

    def remove(self, job: Job) -> None:
        """A job is not wanted any more; one that is not there does no harm. Not within a step."""
        if job in self._waiting:
            self._waiting.remove(job)
            return
        held = job.arrival.prompt_tokens - job.left
        if job in self._prefilling:
            self._prefilling.remove(job)
        elif entry := next((each for each in self._decoding if each[2] is job), None):
            self._decoding.remove(entry)
            heapq.heapify(self._decoding)
            held += job.arrival.output_tokens - 1 - (entry[0] - self._steps)
        else:
            return
        self._held -= held
        self._reserved -= job.room

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._prefilling or self._decoding)

    def begin_step(self) -> float:
        """Admit what there is room for and plan; the seconds that the step takes."""
        group = self.group
        while self._waiting and len(self._prefilling) + len(self._decoding) < group.max_sequences:
            job = self._waiting[0]
            if self._reserved and self._reserved + job.room > group.kv_tokens:
                break
            self._admit(self._waiting.popleft())
        budget, self._plan = self._prompt_room(), []
        before = budget
        for job in self._prefilling:
            part = min(job.left, budget)
            if part == 0:
                break
            self._plan.append((job, part))
            budget -= part
        exact = self.pace.step(len(self._decoding), self._held, before - budget)
        self._duration = exact * (1 + self._draw.uniform(-group.jitter, group.jitter)) + self._importing
        self._importing = 0.0
        return self._duration

    def _prompt_room(self) -> int:
        """Prompt tokens that the next step may compute."""
        group, pace = self.group, self.pace
        if not group.most_step_seconds:
            return group.step_tokens
        left = group.most_step_seconds - pace.step(len(self._decoding), self._held, 0)
        return min(group.step_tokens, max(LEAST_PROMPT, int(left * pace.prefill_tokens_per_second)))

    def _admit(self, job: Job) -> None:
        self._reserved += job.room
        chain = job.arrival.grains
        if job.left == job.arrival.prompt_tokens:
            job.cached_tokens = min(self._cache.cached_at(self.worker_id, chain) * PLACEMENT_GRAIN, job.left - 1)
            job.left -= job.cached_tokens
        self._held += job.cached_tokens
        if chain:
            self._cache.learn(self.worker_id, chain)
        self._prefilling.append(job)

    def end_step(self, now: float) -> list[Job]:
        """The step that began is over: the jobs that have ended with it."""
        decoding, prompt = len(self._decoding), sum(part for _, part in self._plan)
        self.rates.add_step(decoding, prompt, self._duration, lambda: self._held)
        self.seconds += self._duration
        self.gaps[round(self._duration * 1000 * GAPS)] += decoding
        self._steps += 1
        self._held += decoding + prompt
        finished = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            finished.append(heapq.heappop(self._decoding)[2])
        for job, part in self._plan:
            job.left -= part
            if job.left == 0:
                self._prefilling.remove(job)
                job.first = job.first or now
                if job.arrival.output_tokens == 1:
                    finished.append(job)
                else:
                    heapq.heappush(self._decoding, (self._steps + job.arrival.output_tokens - 1, job.number, job))
        for job in finished:
            job.end = now
            self._reserved -= job.room
            self._held -= job.room - 1
        return finished

    @property
    def jobs(self) -> Iterator[Job]:
        """All that wait or run there."""
        yield from self._waiting
        yield from self._prefilling
        yield from self.decoding

    @property
    def waiting(self) -> Iterable[Job]:
        """Those that have no slot yet."""
        return self._waiting

    @property
    def decoding(self) -> Iterator[Job]:
        """Those whose prompt is computed: each step gives each a token."""
        return (job for _, _, job in self._decoding)

    @property
    def load(self) -> tuple[int, int, int, int]:
        """Sequences running and waiting, prompt tokens to prefill, free blocks."""
        waiting = sum(job.left for job in self._waiting) + sum(job.left for job in self._prefilling)
        free = max(0, self.group.kv_tokens - self._held) // self.group.block_size
        return len(self._prefilling) + len(self._decoding), len(self._waiting), waiting, free

    def report(self, *, exact: bool = False, lost: bool = False) -> Worker:
        """The worker as it tells of itself now; `exact`: with its true speed instead of what it has learned."""
        group, pace = self.group, self.pace
        running, waiting, tokens, free = self.load
        true = pace.step_seconds, pace.sequence_seconds, pace.token_seconds
        step = true if exact else self.rates.decode_step.seconds
        prefill, decode = self.rates.prefill.per_second, self.rates.decode.per_second
        if exact:
            prefill = pace.prefill_tokens_per_second
            decode = 1 / max(1e-9, pace.step(max(1, running), self._held, 0))
        return Worker(
            *(self.worker_id, "simulated:1", MODEL, group.accelerator),
            WorkerState.LOST if lost else WorkerState.READY,
            *(group.context_length, group.block_size, group.kv_tokens // group.block_size, free),
            *(group.max_sequences, running, waiting, tokens),
            prefill_tokens_per_second=prefill,
            decode_tokens_per_second=decode,
            step_seconds=step[0],
            step_seconds_per_sequence=step[1],
            step_seconds_per_token=step[2],
            device_name=group.name,
            role=Role(group.role),
            fetch_tokens_per_second=group.fetch_tokens_per_second if exact or self._has_fetched else 0.0,
            import_tokens_per_second=group.import_tokens_per_second if exact or self._has_fetched else 0.0,
        )
