"""One Sequence on its way through the fleet: placed, started, relayed, and placed again when its worker is lost.

    waiting ──granted──▶ running ──last delta──▶ ended
       ▲                    │ │
       └──lost or refused───┘ └──client too slow──▶ parked (cancelled on the worker; waits again once all is read)

Every arrow is a plain call from the queue, the session or the reader; there is no task per sequence.
"""

import asyncio
import itertools
import time
from dataclasses import replace
from enum import Enum, unique
from typing import Any

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import Aborted, ApiError, Code, DataLoss, Unavailable, error_of
from polyfleet.gateway.fleet.prefix_sources import is_bound
from polyfleet.gateway.fleet.session import CALLERS_OWN, Session
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.inbox import Inbox
from polyfleet.gateway.request.queue import RETRY_SECONDS, RequestQueue
from polyfleet.gateway.request.token_times import TokenTimes
from polyfleet.gateway.request.turn import Turn
from polyfleet.placement.apart import Apart
from polyfleet.placement.filters import room
from polyfleet.placement.fleet import PlacementRequest, WorkerState
from polyfleet.wire.answers import FinishReason, SequenceUpdate
from polyfleet.wire.features import needed_features
from polyfleet.wire.hashing import adapter_salt, grain_numbers, seen_by
from polyfleet.wire.ids import sequence_id
from polyfleet.wire.requests import SequenceRequest

EXCLUDED_SECONDS = 1.0  # a worker that failed a sequence is not tried for it again so soon
MOVES_ON = frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED})  # refusals that another worker may not share
NO_FAULT = CALLERS_OWN | {Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION}  # nor is a model that was just unloaded
_serial = itertools.count(1)
_placements = itertools.count()
USUAL_TOKENS = 256  # of an answer, where its limit is higher or none: what it is taken for before it is known


@unique
class State(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    ENDED = "ended"


class SequenceRelay:
    """Runs `request` to its end; its news go to `inbox`, the times of its tokens to `times`.

    Call `start` once and `cancel` whenever it is not wanted. Each worker gets the request under a name of its own.
    """

    def __init__(
        self,
        request: SequenceRequest,
        turn: Turn,
        inbox: Inbox,
        queue: RequestQueue,
        limits: Limits,
        metrics: Metrics,
        times: TokenTimes | None = None,
    ) -> None:
        self.turn = turn
        self.resumed = False
        self._request = request
        self._inbox = inbox
        self._queue = queue
        self._limits = limits
        self._metrics = metrics
        self._times = times or TokenTimes()
        self._state = State.WAITING
        self._generated: list[int] = []
        self._num_scores = self._scores_again = 0  # logprobs of its prompt that came, and that come again
        self._grains: tuple[int, ...] | None = None  # of the prompt; None: nobody has asked
        self._max_tokens = 0  # of the whole sequence, where it runs now
        self._session: Session | None = None
        self._sequence_id = ""
        self._worker_id = ""  # the last one whose news were relayed
        self._heard = False  # whether any delta has come
        self._num_moves = 0
        self._moving = False  # lost one worker, not yet on another
        self._excluded: dict[str, float] = {}  # worker id -> until when
        self._asked = time.monotonic()
        self._waited = 0.0  # seconds, for workers

    def start(self) -> None:
        """Ask for a worker. Raises ResourceExhausted when the queue is full."""
        self._queue.submit(self)

    def cancel(self) -> None:
        """The rest is not wanted; the worker is told. Does no harm at any time."""
        if self._state is State.WAITING:
            self._queue.withdraw(self)
        elif self._state is State.RUNNING and self._session is not None:
            self._session.cancel(self._sequence_id)
        self._end()

    def unpark(self) -> None:
        """The client has read everything: go on, if parked."""
        if self._state is State.PARKED:
            self._wait_again()

    # The queue's side.

    @property
    def cost(self) -> float:
        """Its prompt's tokens and those of its answer, as far as most go."""
        request = self._request
        return len(request.prompt_ids) + (
            1 if request.pooling else min(request.max_tokens or USUAL_TOKENS, USUAL_TOKENS)
        )

    def needs(self) -> PlacementRequest:
        """Room for the prompt, what was generated, and the rest."""
        request, turn, done = self._request, self.turn, len(self._generated)
        excluded = self._excluded
        if excluded:
            now = asyncio.get_running_loop().time()
            excluded = {worker_id: until for worker_id, until in excluded.items() if until > now}
        prefixes, objectives = self._queue.prefixes, turn.objectives
        return PlacementRequest(
            model=turn.model,
            prompt_tokens=len(request.prompt_ids) + done,
            max_tokens=0 if request.pooling else max(1, request.needed_room - done),
            excluded=frozenset(excluded),
            key=f"{request.request_id}/{request.choice}",
            cached_tokens=prefixes.cached_tokens(self._prompt_grains()) if prefixes else {},
            fingerprint=turn.fingerprint,
            output_tokens=1
            if request.pooling
            else max(1, (request.max_tokens or 0) - done)
            if request.max_tokens
            else 0,
            features=needed_features(request),
            tenant=turn.tenant,
            first_token_seconds=objectives.time_to_first_token if objectives else 0.0,
            token_seconds=objectives.time_per_output_token if objectives else 0.0,
            serial=next(_placements),
            revision=turn.revision,
            bound=is_bound(request),
        )

    def _prompt_grains(self) -> tuple[int, ...]:
        if self._grains is None:
            salt = adapter_salt(self._request.cache_salt, self._request.adapter)
            salt = seen_by(salt, [each.digest for each in self._request.images])
            self._grains = grain_numbers(self._request.prompt_ids, salt)
        return self._grains

    def granted(self, session: Session, apart: Apart | None = None) -> None:
        """Start, or go on, there; the prompt is computed where `apart` says."""
        if self._moving:
            self._moving = False
            self._metrics.migrations.labels("resumed").inc()
        self._waited += time.monotonic() - self._asked
        request = self._request
        self._max_tokens = request.max_tokens or room(session.worker()) - len(request.prompt_ids)
        self._state = State.RUNNING
        self._session = session
        self._sequence_id = f"{sequence_id(request.request_id, request.choice)}/{next(_serial)}"
        started: dict[str, Any] = {"sequence_id": self._sequence_id, "max_tokens": self._max_tokens}
        if request.prompt_logprobs is not None and self._num_scores >= len(request.prompt_ids) - 1:
            started["prompt_logprobs"] = None
        self._scores_again = self._num_scores
        sequence = replace(request, generated_ids=tuple(self._generated), **started)
        if self._grains and (source := self._queue.prefix_source(sequence, self._grains, session, apart)):
            sequence = replace(sequence, prefix_source=source)
        session.start(sequence, self, self._grains or ())

    def denied(self, error: ApiError) -> None:
        """Nobody took it in time."""
        self._fail(error)

    # The session's side.

    def updated(self, update: SequenceUpdate) -> None:
        """Put a step's news into the inbox."""
        if update.error:
            self._refused(update)
            return
        tokens, inbox = update.tokens, self._inbox
        self._times.arrived(len(tokens))
        parcel = inbox.parcel(self._request.choice)
        if self._session is not None and self._worker_id != self._session.worker_id:
            self._worker_id = parcel.worker_id = self._session.worker_id
        if not self._heard:
            self._heard = True
            parcel.cached_tokens = update.cached_tokens or 0
            parcel.queue_seconds = self._waited + (update.queue_seconds or 0.0)
        if scores := update.prompt_logprobs:
            known = min(self._scores_again, len(scores))
            self._scores_again -= known
            self._num_scores += len(scores) - known
            parcel.prompt_logprobs += scores[known:]
        self._generated += [token.token_id for token in tokens]
        parcel.tokens += tokens
        if update.embedding:
            parcel.embedding = update.embedding
        inbox.num_tokens += len(tokens)
        if update.finish_reason is not None:
            parcel.finish_reason = update.finish_reason
            self._count(well=True)
            self._end()
        elif inbox.num_tokens > self._limits.max_pending_tokens:
            self._park()

    def lost(self, reason: str) -> None:
        """The worker is gone: find another one."""
        if self._state is State.RUNNING:
            self._count(well=False)
            self._move(Unavailable(f"The worker was lost: {reason.rstrip('.')}.", retry_after=RETRY_SECONDS))

    def _refused(self, update: SequenceUpdate) -> None:
        # A worker that has just unloaded its model has nothing to say about the request.
        code = Code.UNAVAILABLE if update.code == Code.FAILED_PRECONDITION else update.code
        refusal = error_of(code, update.error, retry_after=RETRY_SECONDS)
        if update.code not in NO_FAULT:
            self._count(well=False)
        if update.broken:
            self._move(Unavailable(f"The worker failed: {update.error.rstrip('.')}.", retry_after=RETRY_SECONDS))
        elif refusal.code in MOVES_ON:
            self._move(refusal, refused=True)
        else:
            self._fail(refusal)

    def _count(self, *, well: bool) -> None:
        """Note how it fared with its worker's revision; one that goes away as it was told to has not failed it."""
        if self._session is not None and not self._leaves:
            self._metrics.demand.ended(self._session.worker().revision, well=well)

    @property
    def _leaves(self) -> bool:
        """Whether its worker goes away as it was told to."""
        return self._session is not None and self._session.worker().state is WorkerState.DRAINING

    def _move(self, cause: ApiError, *, refused: bool = False) -> None:
        if 0 < self._max_tokens <= len(self._generated):
            self._inbox.parcel(self._request.choice).finish_reason = FinishReason.LENGTH
            self._end()
            return
        self._num_moves += not self._leaves
        self._moving = True
        if self._session is not None:
            loop = asyncio.get_running_loop()
            self._excluded[self._session.worker_id] = loop.time() + EXCLUDED_SECONDS
            loop.call_later(EXCLUDED_SECONDS, self._queue.fleet_changed)
        if self._num_moves > self._limits.max_moves and not (refused and self._untried()):
            self._fail(cause if refused else self._over_budget(cause))
            return
        self._wait_again()

    def _over_budget(self, cause: ApiError) -> Aborted:
        self._metrics.migrations.labels("over_budget").inc()
        times = "once" if self._num_moves == 1 else f"{self._num_moves} times"
        return Aborted(
            f"The request lost its worker {times}, and may move {self._limits.max_moves} times (limits.max_moves): "
            f"it is not tried again, as it may be what workers fail of. {cause}"
        )

    def _untried(self) -> bool:
        """Whether a worker could take it that never had it: refusals cost nothing, so all are asked."""
        return self._queue.fits(replace(self.needs(), excluded=frozenset(self._excluded)))

    def _wait_again(self) -> None:
        self._state, self._session = State.WAITING, None
        self.resumed = True
        self._asked = time.monotonic()
        self._queue.submit(self)  # never refused: the request has its turn

    def _park(self) -> None:
        self._times.paused()
        self._inbox.parked = True
        if self._session is not None:
            self._session.cancel(self._sequence_id)
        self._state, self._session = State.PARKED, None

    def _fail(self, error: ApiError) -> None:
        if self._moving and error.code is not Code.ABORTED:
            self._metrics.migrations.labels("failed").inc()
        if self._generated and error.code in MOVES_ON:
            error = DataLoss(f"The stream broke and can't be resumed. {error}", retry_after=error.retry_after)
        self._end()
        self._inbox.fail(error)

    def _end(self) -> None:
        self._state, self._session = State.ENDED, None
