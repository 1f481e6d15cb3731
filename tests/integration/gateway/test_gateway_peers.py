"""Gateways that can't hear the scheduler learn the fleet and its tokenizers from each other."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.fleet_certificates import Roots
from tests.support.gateway_rig import GatewayRig, Stream, text_worker, until
from tests.support.ports import free_addresses
from tests.support.snapshot_fleet import SnapshotFleet

from polyfleet.gateway.config import GatewayConfig
from polyfleet.gateway.fleet.peer_server import PeerServer
from polyfleet.gateway.fleet.peers import Peers, PeerService
from polyfleet.gateway.fleet.scheduler_link import SchedulerLink
from polyfleet.gateway.server import Gateway
from polyfleet.process.channels import fleet_access
from polyfleet.v1 import fleet_pb2, fleet_pb2_grpc, inference_pb2_grpc
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.auth import AuthSetupError

LOOPBACK = dict.fromkeys(("grpc_listen", "http_listen", "metrics_listen"), "127.0.0.1:0")
ASK = pb.GenerateRequest(text="hello there", max_tokens=6, ignore_eos=True)


async def test_a_gateway_that_is_born_without_a_scheduler_serves_text() -> None:
    peer, gone = free_addresses(2)
    async with GatewayRig(config={"peer_listen": peer}) as rig:
        await rig.add(text_worker("w-1"))
        expected = (await Stream.read(rig.stub.Generate(ASK))).ids()
        newborn = Gateway(GatewayConfig(**LOOPBACK, fleet=gone, peers=(gone, peer)))  # type: ignore[arg-type]
        await newborn.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{newborn.grpc.port}") as channel:
            await until(lambda: newborn.view.num_ready() == 1)
            stub = inference_pb2_grpc.InferenceStub(channel)
            assert (await Stream.read(stub.Generate(ASK))).ids() == expected
        assert newborn.view.told() == rig.gateway.view.told() is not None
        await newborn.stop()


async def test_what_a_peer_says_counts_when_it_is_later_and_while_the_scheduler_is_away() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        view = rig.gateway.view
        told = view.told()
        assert told is not None
        earlier, later = fleet_pb2.FleetSnapshot(), fleet_pb2.FleetSnapshot()
        later.CopyFrom(told)
        later.generation, later.version = told.generation + 1, 1
        assert not view.offer(earlier)
        assert view.told() == told
        assert view.offer(later)
        assert view.told() == later


async def test_peers_with_certificates_know_each_other_and_no_worker_is_one(tmp_path: Path) -> None:
    roots, (peer,) = Roots(), free_addresses(1)
    access = {role: fleet_access(None, roots.write(tmp_path / role, role)) for role in ("gateway", "worker")}
    told = fleet_pb2.FleetSnapshot(generation=3)
    server = PeerServer(PeerService(lambda: told, {"h": b"document"}.get), peer, access["gateway"], None)
    await server.start()
    assert await Peers([peer], access["gateway"])._ask(peer) == told
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await Peers([peer], access["worker"])._ask(peer)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await server.stop()


@pytest.mark.parametrize("ask", ["ListWorkers", "GetTokenizer", "Deploy"])
async def test_who_does_not_belong_to_the_fleet_is_told_nothing(ask: str, tmp_path: Any) -> None:
    (tmp_path / "token").write_text("secret")
    (peer,) = free_addresses(1)
    config = {"peer_listen": peer, "fleet_token_file": str(tmp_path / "token")}
    async with GatewayRig(config=config) as rig:
        await rig.add(text_worker("w-1"))
        requests = {"ListWorkers": fleet_pb2.ListWorkersRequest, "GetTokenizer": fleet_pb2.GetTokenizerRequest}
        async with grpc.aio.insecure_channel(peer) as channel:
            call = getattr(fleet_pb2_grpc.FleetStub(channel), ask)(requests.get(ask, fleet_pb2.DeployRequest)())
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await (anext(aiter(call)) if ask == "GetTokenizer" else call)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            mine = (("authorization", "Bearer secret"),)
            snapshot = await fleet_pb2_grpc.FleetStub(channel).ListWorkers(
                fleet_pb2.ListWorkersRequest(), metadata=mine
            )
            assert [each.info.worker_id for each in snapshot.workers] == ["w-1"]
            deploy = fleet_pb2_grpc.FleetStub(channel).Deploy(fleet_pb2.DeployRequest(), metadata=mine)
            with pytest.raises(grpc.aio.AioRpcError) as absent:
                await deploy
            assert absent.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_for_peers_beyond_loopback_needs_a_token() -> None:
    with pytest.raises(AuthSetupError, match="needs a fleet token"):
        Gateway(GatewayConfig(**LOOPBACK, peer_listen="0.0.0.0:0"))  # type: ignore[arg-type]


async def test_a_scheduler_that_another_one_has_replaced_is_not_listened_to() -> None:
    async with SnapshotFleet() as fleet:
        link, heard = SchedulerLink(fleet.address, "gw", None), list[int]()
        assert link._lives.admits(9, 0.0)
        fleet.generation = 9
        fleet.publish()
        watch = asyncio.create_task(link.watch(lambda each: heard.append(each.generation)))
        await until(lambda: heard == [9])
        fleet.generation = 8
        fleet.publish()
        await until(lambda: not link.connected)
        fleet.generation = 10
        fleet.publish()
        await until(lambda: heard == [9, 10])
        watch.cancel()
