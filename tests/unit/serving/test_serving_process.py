"""The worker's process: when others are told of it."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from polyfleet.process.worker_lock import read_lock
from polyfleet.serving.config import WorkerConfig
from polyfleet.serving.process import WorkerProcess
from polyfleet.serving.server import WorkerServer


def config(lock_file: Path) -> WorkerConfig:
    values: dict[str, Any] = dict.fromkeys(("transfer_listen", "advertise_host", "fleet", "deployment"), "")
    values |= dict.fromkeys(("load", "fleet_token_file", "fleet_keys_file", "fleet_tls_dir"))
    values |= dict.fromkeys(("canary_interval", "stall_timeout", "load_stall_timeout", "telemetry_interval"), 0.0)
    values |= dict.fromkeys(("listen", "metrics_listen"), "127.0.0.1:0")
    values |= {"worker_id": "w-1", "accelerator": "cpu", "device": "auto", "place": 0, "lock_file": lock_file}
    return WorkerConfig(**values, drain_timeout=1.0, replace_after=0, log_level="info")


async def test_a_lock_names_a_worker_that_takes_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, early = tmp_path / "worker.json", list[bool]()
    start = WorkerServer.start

    async def slowly(self: WorkerServer) -> None:
        await asyncio.sleep(0.05)
        early.append(path.exists())
        await start(self)

    monkeypatch.setattr(WorkerServer, "start", slowly)
    running = asyncio.create_task(WorkerProcess(config(path)).run())
    while (lock := read_lock(path)) is None:
        assert not running.done()
        await asyncio.sleep(0.01)
    host, _, port = lock.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert early == [False]
    assert not path.exists()
