"""Keys and names that were good once, or are for others: each is refused over every door, on old connections too."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from tests.support.gateway_rig import GatewayRig, Stream, failure_of, text_worker
from tests.unit.process.test_process_fleet_keys import bearer, write

from polyfleet.process import keys as process_keys
from polyfleet.v1 import agents_pb2, agents_pb2_grpc
from polyfleet.v1 import inference_pb2 as pb

ASK = pb.GenerateRequest(token_ids=[4, 5], max_tokens=2)
BODY: Mapping[str, object] = {"model": "fake", "max_tokens": 2}
PATHS: Mapping[str, Mapping[str, object]] = {
    "completions": {**BODY, "prompt": [4, 5]},
    "chat/completions": {**BODY, "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"model": "fake", "max_output_tokens": 2, "input": "hi"},
    "messages": {**BODY, "messages": [{"role": "user", "content": "hi"}]},
}
KEEP = {"id": "keep"}
PAST = "2020-01-01T00:00:00Z"
Code = grpc.StatusCode
REFUSED: Mapping[str, tuple[tuple[Mapping[str, object], ...], Code, int]] = {  # what the file says of the key then
    "revoked": ((KEEP,), Code.UNAUTHENTICATED, 401),
    "changed for another": ((KEEP, {"id": "key", "hash": "0" * 64}), Code.UNAUTHENTICATED, 401),
    "expired": ((KEEP, {"id": "key", "expires": PAST}), Code.UNAUTHENTICATED, 401),
    "a worker's": ((KEEP, {"id": "key", "role": "worker"}), Code.PERMISSION_DENIED, 403),
    "a gateway's": ((KEEP, {"id": "key", "role": "gateway"}), Code.PERMISSION_DENIED, 403),
    "a scheduler's": ((KEEP, {"id": "key", "role": "scheduler"}), Code.PERMISSION_DENIED, 403),
}


async def codes(http: httpx2.AsyncClient, headers: Mapping[str, str]) -> set[int]:
    """What each path of the HTTP API answers."""
    asked = [http.post(path, json=body, headers=headers) for path, body in PATHS.items()]
    return {each.status_code for each in await asyncio.gather(*asked, http.get("models", headers=headers))}


@pytest.mark.parametrize("why", REFUSED)
async def test_a_key_is_no_use_any_more(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_keys, "RELOAD_SECONDS", 0.0)
    keys = write(tmp_path / "keys.yaml", KEEP, {"id": "key"})
    headers = {"authorization": "Bearer key"}, {"x-api-key": "key"}
    entries, code, status = REFUSED[why]
    async with GatewayRig(config={"keys_file": str(keys)}) as rig:
        await rig.add(text_worker("w-1"))
        async with httpx2.AsyncClient(base_url=f"{rig.http}/v1/", timeout=60, trust_env=False) as http:
            assert (await Stream.read(rig.stub.Generate(ASK, metadata=bearer("key")))).ids()
            assert [await codes(http, each) for each in headers] == [{200}, {200}]
            write(keys, *entries)
            calls = {
                "Generate": ASK,
                "Embed": pb.EmbedRequest(inputs=[pb.EmbedInput(text="a")]),
                "Tokenize": pb.TokenizeRequest(text="a"),
                "ListModels": pb.ListModelsRequest(),
                "GetModel": pb.GetModelRequest(name="fake"),
            }
            for name, request in calls.items():
                refused = await failure_of(getattr(rig.stub, name)(request, metadata=bearer("key")))
                assert refused.code is code, name
            assert [await codes(http, each) for each in headers] == [{status}, {status}]
            assert await codes(http, {"authorization": "Bearer keep"}) == {200}


async def carry(stub: Any, session: str, number: int) -> Any:
    """A Carry call that has said what it is for."""
    call = stub.Carry()
    await call.write(agents_pb2.CarriedBytes(session=session, connection=number))
    return call


async def test_an_agents_session_is_good_once_for_each_connection_and_over_with_its_join() -> None:
    async with GatewayRig() as rig, rig.channel() as channel:
        stub = agents_pb2_grpc.AgentsStub(channel)
        join = stub.Join()
        agent = agents_pb2.Agent(name="mac", process="1", unix_seconds=time.time())
        await join.write(agents_pb2.JoinRequest(agent=agent))
        joined = await join.read()
        reader, writer = await asyncio.open_connection(*joined.worker_address.rsplit(":", 1))
        while not (number := (await join.read()).connection):
            pass
        first = await carry(stub, joined.session, number)
        await first.write(agents_pb2.CarriedBytes(data=b"hello"))
        assert await reader.readexactly(5) == b"hello"
        again = await failure_of(await carry(stub, joined.session, number))
        assert again.code is Code.NOT_FOUND
        assert (await failure_of(await carry(stub, "another", number))).code is Code.FAILED_PRECONDITION
        join.cancel()
        assert await reader.read() == b""
        for each in (0, number, number + 1):
            over = await failure_of(await carry(stub, joined.session, each))
            assert (over.code, over.message) == (
                Code.FAILED_PRECONDITION,
                "This gateway knows no such session: join again.",
            )
        writer.close()
