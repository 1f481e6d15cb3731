"""Scheduler, worker, gateway and command line over TLS: all of them meet, and each keeps to its role."""

import asyncio
import json
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from tests.support.fleet_certificates import Roots
from tests.support.gateway_rig import until
from tests.support.running_scheduler import start, stop
from tests.support.running_worker import RunningWorker

from polyfleet.cli.main import cli
from polyfleet.gateway.fleet.scheduler_link import SchedulerLink
from polyfleet.gateway.fleet.view import FleetView
from polyfleet.gateway.grpc.workers import WorkerDialler
from polyfleet.process.channels import FleetAccess, fleet_access
from polyfleet.scheduler.launcher.worker_client import WorkerClient

ROLES = ("scheduler", "worker", "gateway", "operator")


async def test_all_parts_meet_over_tls(tmp_path: Path) -> None:
    roots, token = Roots(), tmp_path / "token"
    token.write_text("the fleet's\n")
    folders = {role: str(roots.write(tmp_path / role, role)) for role in ROLES}
    access = {role: fleet_access(token, folder) for role, folder in folders.items()}
    running = await start(tmp_path, fleet_token_file=str(token), fleet_tls_dir=folders["scheduler"], settle_seconds=0.0)
    view = FleetView("gw", WorkerDialler(access["gateway"]))
    watch = asyncio.create_task(SchedulerLink(running.address, "gw", access["gateway"]).watch(view.apply))
    flags = ("--fleet", running.address, "--fleet-token-file", str(token), "--fleet-tls-dir", folders["worker"])
    try:
        async with RunningWorker(tmp_path, *flags, model="fake:canary=0", wait_ready=False) as worker:
            await until(lambda: view.num_ready() == 1)
            async with WorkerClient(worker.address, access["scheduler"]) as client:
                assert (await client.status()).info.model.name == "fake"
            for stranger in (access["worker"], access["gateway"], FleetAccess(access["scheduler"].token)):
                async with WorkerClient(worker.address, stranger) as client:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await client.drain(leave=True)
            command = ["workers", *flags[:4], "--fleet-tls-dir", folders["operator"], "--json"]
            result = await asyncio.to_thread(CliRunner().invoke, cli, command)
            assert [each["state"] for each in json.loads(result.stdout)] == ["ready"]
            refused = await asyncio.to_thread(CliRunner().invoke, cli, [*command[:5], "--json"])
            assert refused.exit_code != 0
    finally:
        watch.cancel()
        await view.close()
        await stop(running)
