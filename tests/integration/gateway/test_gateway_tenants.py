"""Tenants at a whole gateway: quotas, priorities, shares and usage, over gRPC and HTTP."""

import asyncio
import hashlib
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from tests.support.gateway_rig import Failure, GatewayRig, Stream, failure_of, text_worker, until

from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb


def keys_file(folder: Path, *tenants: dict[str, Any], **keys: dict[str, Any]) -> str:
    """Keys whose secrets are their ids."""
    entries = [{"id": each, "hash": hashlib.sha256(each.encode()).hexdigest(), **more} for each, more in keys.items()]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": entries, "tenants": list(tenants)}))
    return str(folder / "keys.yaml")


def call(rig: GatewayRig, key: str, **more: Any) -> Any:
    request = pb.GenerateRequest(token_ids=[1, 2, 3], ignore_eos=True, **{"max_tokens": 4, **more})
    return rig.stub.Generate(request, metadata=(("authorization", f"Bearer {key}"),))


async def test_a_tenant_with_many_requests_does_not_hold_up_another(tmp_path: Path) -> None:
    async with GatewayRig(config={"keys_file": keys_file(tmp_path, big={}, small={})}) as rig:
        worker = text_worker("w-1", max_sequences=4, token_seconds=1.0)
        await rig.add(worker)
        big = [asyncio.create_task(Stream.read(call(rig, "big", max_tokens=60))) for _ in range(60)]
        await until(lambda: rig.gateway.ledger.running == 60)
        await asyncio.sleep(0.05)
        assert len(worker.started) < 10  # its batch, and a few that may come into it: the others wait in order
        small = [asyncio.create_task(Stream.read(call(rig, "small", max_tokens=5))) for _ in range(3)]
        await until(lambda: rig.gateway.ledger.running == 63)
        at_worker = len(worker.started)
        worker.token_seconds = 0.0
        await asyncio.gather(*small, *big)
        places = [index for index, each in enumerate(worker.started) if each.max_tokens == 5]
        assert places[-1] < at_worker + 8  # in turns with the other
        assert len(worker.started) == 63


async def test_quotas_are_refused_with_the_time_to_wait(tmp_path: Path) -> None:
    tenants = {"id": "t", "tokens_per_minute": 60}, {"id": "few", "max_concurrent": 1}
    async with GatewayRig(config={"keys_file": keys_file(tmp_path, *tenants, one={"tenant": "t"}, few={})}) as rig:
        await rig.add(text_worker("w-1", token_seconds=0.002))
        await Stream.read(call(rig, "one", max_tokens=90))
        failure = await failure_of(call(rig, "one"))
        assert (failure.code, failure.quotas) == (grpc.StatusCode.RESOURCE_EXHAUSTED, ["tokens_per_minute"])
        assert failure.retry_seconds is not None
        assert 25 < failure.retry_seconds < 40  # 33 owed at one a second
        body = json.dumps({"prompt": "Hi", "max_tokens": 1}).encode()
        headers = {"Authorization": "Bearer one", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{rig.http}/v1/completions", body, headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            await asyncio.to_thread(urllib.request.urlopen, request)
        assert caught.value.code == 429
        assert 20 < int(caught.value.headers["Retry-After"]) < 40
        running = call(rig, "few", max_tokens=1000)
        await running.read()
        assert (await failure_of(call(rig, "few"))).quotas == ["max_concurrent"]
        running.cancel()
        await until(lambda: rig.gateway.ledger.running == 0)
        await Stream.read(call(rig, "few"))


async def test_a_priority_is_bounded_by_the_key(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, low={"max_priority": -5}, mid={"max_priority": 3})
    async with GatewayRig(config={"keys_file": keys}) as rig:
        worker = text_worker("w-1")
        await rig.add(worker)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stream.read(call(rig, "mid", priority=4))
        assert Failure.of(caught.value).fields == {"priority": "may be 3 at most with this key, not 4"}
        await Stream.read(call(rig, "mid", priority=3))
        await Stream.read(call(rig, "low"))
        assert [each.priority for each in worker.started] == [3, -5]


async def test_usage_is_reported_by_tenant_and_model_also_at_the_end(tmp_path: Path) -> None:
    async with GatewayRig(config={"keys_file": keys_file(tmp_path, a={"tenant": "t"}, b={"tenant": "t"})}) as rig:
        await rig.add(text_worker("w-1"))
        for key in ("a", "b"):
            await Stream.read(call(rig, key))
        fleet = rig.fleet
    rows = [row for report in fleet.reports for row in report.rows]
    assert {(row.tenant, row.model) for row in rows} == {("t", "fake")}
    assert sum(row.requests for row in rows) == 2
    assert sum(row.prompt_tokens for row in rows) == 6
    assert sum(row.completion_tokens for row in rows) == 8
    assert isinstance(fleet.reports[0], fleet_pb2.ReportUsageRequest)
