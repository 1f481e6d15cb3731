"""The scheduler's Fleet service, as the console calls it."""

from typing import Any, TypeVar

import grpc

from polyfleet.console.config import ConsoleConfig
from polyfleet.console.fleet.words import SCHEDULER_GONE
from polyfleet.process.channels import FleetAccess, fleet_access
from polyfleet.process.keys import Role
from polyfleet.v1.fleet_pb2_grpc import FleetStub

TIMEOUT_SECONDS = 10.0
_T = TypeVar("_T")


class FleetProblem(Exception):
    """Why a call did not do what it should, in one sentence. `gone`: nobody answered."""

    def __init__(self, problem: str, *, gone: bool = False) -> None:
        super().__init__(problem)
        self.gone = gone


class FleetLink:
    """Calls by the name of their RPC. Raises ConfigError and AuthSetupError."""

    def __init__(self, config: ConsoleConfig) -> None:
        self._address = config.fleet
        self._access: FleetAccess = fleet_access(config.fleet_token_file, config.fleet_tls_dir)
        self._channel = self._access.channel(config.fleet, Role.SCHEDULER)
        self._stub: Any = FleetStub(self._channel)

    async def call(self, name: str, request: object, answer: type[_T], timeout: float = TIMEOUT_SECONDS) -> _T:
        """The answer of type `answer` to `request`. Raises FleetProblem."""
        try:
            found = await getattr(self._stub, name)(request, timeout=timeout, metadata=self._access.metadata)
        except grpc.aio.AioRpcError as error:
            gone = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED or self._is_cut(error)
            problem = SCHEDULER_GONE.format(address=self._address) if gone else error.details()
            raise FleetProblem(problem or str(error.code()), gone=gone) from None
        assert isinstance(found, answer)
        return found

    def _is_cut(self, error: grpc.aio.AioRpcError) -> bool:
        """Whether nobody answered; the scheduler itself may say UNAVAILABLE, of Ray or a worker."""
        connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
        return error.code() is grpc.StatusCode.UNAVAILABLE and not connected

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()
