"""What gateways are told of a worker's transfers, and what its engine is."""

from collections.abc import Callable

from polyfleet.serving.engine_client import EngineClient
from polyfleet.transfer.settings import TransferSettings
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.wire.auth import join_host_port, split_host_port
from polyfleet.wire.tickets import TransferOffer


class Transfers:
    """Of one worker; each engine process has a door and a key of its own."""

    def __init__(self, info: fleet.WorkerInfo, engine: Callable[[], EngineClient | None]) -> None:
        self.settings: TransferSettings | None = None  # of engines to come; None: they exchange nothing
        self._info, self._engine = info, engine

    @property
    def offer(self) -> TransferOffer:
        """Where the engine gives prefixes away, at the host where gateways reach the worker; no address: nowhere."""
        engine = self._engine()
        if engine is None or (door := engine.loaded.transfer) is None:
            return TransferOffer("")
        host, _ = split_host_port(self._info.address)
        return TransferOffer(join_host_port(host, door.port), door.local, door.key)
