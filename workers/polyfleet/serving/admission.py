"""Which sequences a worker takes, for which gateway's session, and why it refuses others."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from polyfleet.convert.sequences import sequence_request
from polyfleet.serving.adapters import ServedAdapters
from polyfleet.serving.engine_client import EngineClient
from polyfleet.serving.health.lifecycle import Lifecycle
from polyfleet.serving.prefix_log import PrefixLog
from polyfleet.serving.router import (
    FAILED_PRECONDITION,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    SequenceRouter,
)
from polyfleet.serving.session import GatewaySession
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.wire.answers import INVALID_ARGUMENT
from polyfleet.wire.limits import FieldError

MAX_OPEN_SEQUENCES = 4096  # of all sessions together; the gateways' queues hold the rest


class Admission:
    """Opens and closes sessions, starts and cancels their sequences on the engine that there is now."""

    def __init__(
        self,
        router: SequenceRouter,
        lifecycle: Lifecycle,
        engine: Callable[[], EngineClient | None],
        adapters: ServedAdapters,
    ) -> None:
        self._router = router
        self._lifecycle = lifecycle
        self._engine = engine
        self._adapters = adapters
        self.prefixes = PrefixLog()

    def open_session(self) -> GatewaySession:
        """A gateway has come."""
        session = GatewaySession(self.prefixes)
        self._router.sessions.add(session)
        return session

    def close_session(self, session: GatewaySession) -> None:
        """A gateway has gone: all its sequences end."""
        session.close()
        for sequence_id in list(session.open):
            self.cancel(session, sequence_id)
        self._router.sessions.discard(session)

    def start(self, session: GatewaySession, start: pb.StartSequence, grains: Sequence[int] = ()) -> None:
        """Begin a sequence, or answer with its error at once. An id that is open already ends with the error too.

        `grains` name the beginnings of its prompt to other gateways.
        """
        session.num_starts += 1
        refusal = self._refusal(session, start.sequence_id) or self._adapter_refusal(start.adapter)
        if refusal is not None:
            session.fail(start.sequence_id, *refusal)
            return
        engine = self._engine()
        assert engine is not None
        engine_id = self._router.engine_name(start.sequence_id)
        try:
            request = sequence_request(start)
        except FieldError as error:
            session.fail(start.sequence_id, INVALID_ARGUMENT, str(error))
            return
        self._router.connect(session, request, engine_id)
        number = engine.add(replace(request, sequence_id=engine_id))
        self.prefixes.add(tuple(grains), session.prefixes)
        for other in self._router.sessions - {session}:
            other.hear_soon()
        session.queued(lambda: engine is not self._engine() or number <= engine.counted_adds)

    def cancel(self, session: GatewaySession, sequence_id: str) -> None:
        """End a sequence without a word; unknown ids are ignored."""
        engine_id = self._router.disconnect(session, sequence_id)
        if engine_id is not None and (engine := self._engine()) is not None:
            engine.cancel(engine_id)

    def _adapter_refusal(self, fingerprint: str) -> tuple[int, str] | None:
        """Another worker may have the adapter."""
        if fingerprint and fingerprint not in self._adapters.fingerprints:
            return UNAVAILABLE, "The worker does not have the adapter, or no longer."
        return None

    def _refusal(self, session: GatewaySession, sequence_id: str) -> tuple[int, str] | None:
        """Why no sequence of that id can start now: google.rpc code and sentence."""
        if self._lifecycle.state in (fleet.WORKER_STATE_STARTING, fleet.WORKER_STATE_LOADING):
            return FAILED_PRECONDITION, f"The worker {self._lifecycle.doing}."
        if self._lifecycle.state != fleet.WORKER_STATE_READY:
            return UNAVAILABLE, f"The worker {self._lifecycle.doing}."
        if not sequence_id:
            return INVALID_ARGUMENT, "sequence_id: must not be empty"
        if sequence_id in session.open:
            self.cancel(session, sequence_id)
            return INVALID_ARGUMENT, "sequence_id: is open in this session already; both have ended"
        if len(self._router) >= MAX_OPEN_SEQUENCES:
            return RESOURCE_EXHAUSTED, f"The worker has {MAX_OPEN_SEQUENCES} sequences open: try another or wait."
        return None
