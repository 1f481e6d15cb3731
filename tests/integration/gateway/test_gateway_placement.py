"""`gateway.placement`: a gateway chooses workers by the policy of its configuration."""

import asyncio
import json
import logging

import httpx2 as httpx
import pytest
from click.testing import CliRunner
from tests.support.gateway_rig import MODEL, GatewayRig, Stream, text_worker

from polyfleet.cli.main import cli
from polyfleet.client import AsyncClient
from polyfleet.gateway import server
from polyfleet.placement.fleet import PlacementRequest
from polyfleet.placement.place import Placement, place
from polyfleet.placement.policy import Policy
from polyfleet.placement.pool import FleetIndex
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.placements import ASK, TRAILER


async def test_workers_are_chosen_by_the_configured_policy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policies: list[Policy] = []

    def watched(request: PlacementRequest, fleet: FleetIndex, policy: Policy) -> Placement:
        policies.append(policy)
        return place(request, fleet, policy)

    monkeypatch.setattr(server, "place", watched)
    caplog.set_level(logging.INFO, "polyfleet.gateway.request.queue")
    configured = Policy(tie_seconds=7.0, log_ratio=0.5)
    async with GatewayRig(config={"placement": configured}) as rig:
        await rig.add(text_worker("w-1"))
        request = pb.GenerateRequest(model=MODEL, text="fox", max_tokens=2)
        for _ in range(4):
            assert len((await Stream.read(rig.stub.Generate(request))).ids()) == 2
    assert len(policies) == 4
    assert all(each == configured for each in policies)
    logged = [each.__dict__ for each in caplog.records if each.getMessage() == "A worker was chosen."]
    assert [each["placement"]["worker_id"] for each in logged] == ["w-1", "w-1"], "one of two"


async def test_what_a_worker_does_not_name_is_not_asked_of_it() -> None:
    """One of an older version would pass over the field, and nobody would know."""
    async with GatewayRig() as rig:
        older, newer = text_worker("w-1"), text_worker("w-2")
        older.features = ("logprobs", "embeddings")
        await rig.add(older, newer)
        plain = pb.GenerateRequest(model=MODEL, text="fox", max_tokens=2)
        biased = pb.GenerateRequest(model=MODEL, text="fox", max_tokens=2, logit_bias={5: 1.0})
        spelled = pb.GenerateRequest(model=MODEL, text="fox", max_tokens=2, structure=pb.Structure(regex="[a-z]*"))
        for request, where in ((biased, {"w-2"}), (spelled, {"w-2"}), (plain, {"w-1", "w-2"})):
            answers = [await Stream.read(rig.stub.Generate(request)) for _ in range(8)]
            assert {worker for answer in answers for worker in answer.workers()} == where


async def test_a_caller_who_asks_is_told_what_decided(capsys: pytest.CaptureFixture[str]) -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        await rig.add(text_worker("w-short", context_length=4))
        request = pb.GenerateRequest(model=MODEL, text="fox fox fox", max_tokens=2, n=1)
        call = rig.stub.Generate(request, metadata=[ASK])
        await Stream.read(call)
        (placement,) = json.loads(dict(await call.trailing_metadata())[TRAILER])
        assert (placement["worker_id"], placement["policy"]) == ("w-1", "completion")
        assert [each["worker_id"] for each in placement["workers"]] == ["w-1"]
        assert placement["workers"][0]["completion_seconds"] > 0
        (dropped,) = placement["dropped"]
        assert (dropped["worker_id"], "context of 4 tokens is shorter" in dropped["reason"]) == ("w-short", True)
        silent = rig.stub.Generate(request)
        await Stream.read(silent)
        assert TRAILER not in dict(await silent.trailing_metadata())
        async with AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
            (explained,) = await client.explain("fox fox fox", max_tokens=2)
            assert explained["workers"][0].keys() == placement["workers"][0].keys()
        body = {"model": MODEL, "prompt": "fox fox fox", "max_tokens": 2}
        async with httpx.AsyncClient(base_url=rig.http) as http:
            for stream in (False, True):
                answer = await http.post("/v1/completions", json={**body, "stream": stream}, headers=dict([ASK]))
                (told,) = json.loads(answer.headers[TRAILER])
                assert (told["worker_id"], told["dropped"]) == ("w-1", placement["dropped"])
            assert TRAILER not in (await http.post("/v1/completions", json=body)).headers
        command = ["explain", "fox fox fox", "--gateway", f"127.0.0.1:{rig.gateway.grpc.port}"]
        result = await asyncio.to_thread(CliRunner().invoke, cli, command)
        assert result.exit_code == 0, result.output
        shown = result.output + capsys.readouterr().out
        assert "w-1 was chosen by policy completion." in shown
        assert "w-short: its context of 4 tokens" in shown


async def test_prompts_go_where_their_beginning_is_and_gateways_hear_of_each_others() -> None:
    """A worker's own process tells them; here the gateway's half alone: grains go with each start."""
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        ids = [2 + n % 7 for n in range(200)]
        request = pb.GenerateRequest(model=MODEL, token_ids=ids, max_tokens=2)
        await Stream.read(rig.stub.Generate(request))
        call = rig.stub.Generate(request, metadata=[ASK])
        await Stream.read(call)
        (placement,) = json.loads(dict(await call.trailing_metadata())[TRAILER])
        assert placement["workers"][0]["cached_tokens"] == 192
