"""Simulated workers behind a real gateway: processes of their own, any of which may die."""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.fake_fleet import FakeFleet
from tests.support.gateway_rig import GatewayRig, until

from polyfleet.simulator.tokens import answer, tokenizer_document
from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb

FLEET = """
groups:
  - name: w
    accelerator: cuda
    workers: 2
    role: decode
    steps: {prefill_tokens_per_second: 100000, step_seconds: 0.02, sequence_seconds: 0}
"""


def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()


async def test_a_stream_whose_simulated_worker_is_killed_goes_on_token_by_token(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    async with AsyncExitStack() as stack:
        registered = await stack.enter_async_context(FakeFleet())
        rig = await stack.enter_async_context(GatewayRig())
        processes = {}
        for worker_id, options in (("w-0", []), ("w-1", ["--role", "both"])):
            command = [sys.executable, "-m", "polyfleet.cli", "simulate-workers", str(path), "--only", worker_id]
            command += options
            process = await asyncio.create_subprocess_exec(*command, "--fleet", registered.address)
            stack.push_async_callback(process.wait)
            stack.callback(end, process)
            processes[worker_id] = process
        await registered.until(
            lambda: len({each.worker_id for each in registered.infos if each.HasField("model")}) == 2
        )
        infos = {each.worker_id: each for each in registered.infos}
        assert {(each.accelerator, each.device_name) for each in infos.values()} == {("cuda", "simulated w")}
        roles = {worker_id: fleet_pb2.WorkerRole.Name(each.role) for worker_id, each in infos.items()}
        assert roles == {"w-0": "WORKER_ROLE_DECODE", "w-1": "WORKER_ROLE_UNSPECIFIED"}
        rig.fleet.add_assets(tokenizer_document())
        ready = fleet_pb2.WorkerStatus(state=fleet_pb2.WORKER_STATE_READY)
        rig.fleet.publish([fleet_pb2.FleetWorker(info=each, status=ready) for each in infos.values()])
        await until(lambda: rig.gateway.view.num_ready() == 2)
        ids, workers = list[int](), list[str]()
        async for message in rig.stub.Generate(pb.GenerateRequest(text="fox", max_tokens=60)):
            ids += message.token_ids
            if message.worker_id:
                workers.append(message.worker_id)
            if len(ids) > 10 and processes[workers[0]].returncode is None:
                processes[workers[0]].send_signal(signal.SIGKILL)
                await processes[workers[0]].wait()
        assert ids == answer(list(b"fox"), 60)
        assert sorted(workers) == ["w-0", "w-1"]
