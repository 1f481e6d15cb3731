"""The transfer channel between two real worker processes with certificates: who is of another fleet gets nothing."""

import asyncio
import shutil
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.fleet_certificates import Roots
from tests.support.running_worker import REAL, RunningWorker
from tests.support.session_client import OWN_CONNECTION, SessionClient
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.process.channels import FleetAccess, fleet_access
from polyfleet.process.keys import Role
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.tickets import TransferOffer, source_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are found by their lock files there")
OPTIONS = ("--threads", "1", "--kv-cache-tokens", "2048", "--max-sequences", "2", "--canary-interval", "0")
SHAPE = TinyShape(vocabulary=len(byte_level_metadata()["tokenizer.ggml.tokens"]), context=512)
TOKENS, CACHED = 200, 192
PATIENCE_SECONDS = 60.0  # so that it is fetched, however fast so small a model would be


class TlsWorker(RunningWorker):
    """One whose callers have certificates."""

    def __init__(self, home: Path, access: dict[Role, FleetAccess], *options: str, model: str) -> None:
        super().__init__(home, *options, model=model, command=REAL)
        self._access = access

    async def status(self) -> pb.StatusResponse:
        metadata = self._access[Role.SCHEDULER].metadata
        async with self._channel(Role.SCHEDULER) as channel:
            answer = await worker_pb2_grpc.WorkerStub(channel).Status(pb.StatusRequest(), metadata=metadata)
            assert isinstance(answer, pb.StatusResponse)
            return answer

    def session(self, gateway_id: str = "g-test") -> SessionClient:
        metadata = self._access[Role.GATEWAY].metadata
        return SessionClient(self.address, gateway_id, metadata, self._channel(Role.GATEWAY))

    def _channel(self, role: Role) -> Any:
        return self._access[role].channel(self.address, Role.WORKER, OWN_CONNECTION)


def prompt(number: int) -> list[int]:
    """One that shares no beginning with others."""
    return [3 + (number + 7 * place) % 80 for place in range(TOKENS)]


async def offer_of(session: SessionClient) -> TransferOffer:
    """Over TCP: shared memory needs no certificates."""
    while not (event := await session.event()).HasField("transfer"):
        pass
    return TransferOffer(event.transfer.address, "", event.transfer.key)


async def cached(session: SessionClient, name: str, ids: list[int], source: pb.PrefixSource | None = None) -> int:
    """How many tokens of a prompt's beginning a worker had, or fetched."""
    start = pb.StartSequence(sequence_id=name, prompt_ids=ids, max_tokens=2, ignore_eos=True, prefix_source=source)
    start.sampling.temperature = 0
    await session.start(start)
    deltas = (await session.run_to_end())[name]
    assert not any(delta.HasField("error") for delta in deltas)
    return deltas[0].cached_tokens


@pytest.mark.slow
async def test_a_peer_of_another_fleet_gets_nothing_and_renewed_certificates_count(tmp_path: Path) -> None:
    model, roots, token = tmp_path / "tiny.gguf", Roots(), tmp_path / "token"
    write_gguf(model, SHAPE, "F32", extra=byte_level_metadata())
    token.write_text("the fleet's\n")
    callers = (Role.GATEWAY, Role.SCHEDULER)
    access = {role: fleet_access(token, roots.write(tmp_path / role.value, role.value)) for role in callers}
    workers, folders = list[TlsWorker](), list[Path]()
    for name in ("gives", "fetches"):
        (home := tmp_path / name).mkdir()
        folders.append(roots.write(tmp_path / f"{name}-tls", "worker"))
        flags = ("--fleet-token-file", str(token), "--fleet-tls-dir", str(folders[-1]))
        workers.append(TlsWorker(home, access, *OPTIONS, *flags, model=str(model)))
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(each) for each in workers))
        gives, fetches = [await stack.enter_async_context(each.session()) for each in workers]
        offer, info = await offer_of(gives), (await workers[0].status()).info

        async def fetched(number: int) -> int:
            ids = prompt(number)
            assert await cached(gives, f"there-{number}", ids) == 0
            source = source_of(offer, prefix_root(info.model.fingerprint, b""), len(ids), PATIENCE_SECONDS)
            message = pb.PrefixSource(address=source.address, tokens=source.tokens, seconds=source.seconds)
            message.ticket, message.secret = source.ticket, source.secret
            return await cached(fetches, f"here-{number}", ids, message)

        assert await fetched(1) == CACHED
        for folder in folders:  # renewed, while both run
            roots.write(folder, "worker")
        assert await fetched(2) == CACHED
        stranger = Roots().write(tmp_path / "stranger", "worker")
        shutil.copytree(stranger, folders[1], dirs_exist_ok=True)
        assert await fetched(3) == 0
    assert "certificate" in workers[0].errors + workers[1].errors
