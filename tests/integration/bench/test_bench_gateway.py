"""The serving benchmark against a whole gateway with a fake worker: every kind of target, and its exit status."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bench.serving import measure, parse
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import GatewayRig, text_worker, until
from tests.support.tiny_models import TinyShape, write_folder

FEW = ["--requests", "4", "--warmup", "1", "--rounds", "2", "--max-tokens", "5", "--prompt-tokens", "8"]


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with GatewayRig() as rig:
        yield rig


@pytest.fixture(autouse=True)
async def worker(rig: GatewayRig) -> FakeWorker:
    worker = text_worker("w-1")
    await rig.add(worker)
    return worker


@pytest.mark.parametrize("prompt", ["text", "chat"])
@pytest.mark.parametrize("load", [["--concurrency", "2"], ["--rate", "100"]])
async def test_endpoint_and_peer(rig: GatewayRig, prompt: str, load: list[str]) -> None:
    url = f"{rig.http}/v1"
    results, rows = await measure(parse(["--url", url, "--peer", url, "--prompt", prompt, *load, *FEW]))
    for result in results:
        assert [outcome.error for outcome in result.outcomes] == [""] * 4
        assert {outcome.tokens for outcome in result.outcomes} == {5}
    assert all(row.peer_value is not None for row in rows)
    throughput = next(row for row in rows if row.name == "serving_throughput")
    assert throughput.value == pytest.approx(20 / results[0].seconds)


async def test_grpc(rig: GatewayRig) -> None:
    address = f"127.0.0.1:{rig.gateway.grpc.port}"
    (result,), rows = await measure(parse(["--grpc", address, *FEW]))
    assert [(outcome.tokens, outcome.error) for outcome in result.outcomes] == [(5, "")] * 4
    assert all(outcome.due < outcome.first <= outcome.last <= outcome.end for outcome in result.outcomes)
    assert {row.peer for row in rows} == {""}


@pytest.mark.parametrize("prompt", ["text", "chat"])
async def test_what_the_gateway_adds(rig: GatewayRig, worker: FakeWorker, prompt: str) -> None:
    address = f"127.0.0.1:{rig.gateway.grpc.port}"
    arguments = ["--grpc", address, "--direct-worker", worker.address, "--prompt", prompt, *FEW]
    (through, direct), rows = await measure(parse(arguments))
    assert [outcome.error for outcome in through.outcomes + direct.outcomes] == [""] * 8
    assert {tuple(start.prompt_ids) for start in worker.started} == {tuple(worker.started[0].prompt_ids)}
    assert len(worker.started) == 10
    await until(lambda: len(worker.sessions) == 1)  # the benchmark's own ends
    assert {row.name for row in rows} >= {"serving_gateway_added_ttft_p50", "serving_ttft_through_gateway_p50"}


async def test_refusals_are_counted_not_raised(rig: GatewayRig) -> None:
    (result,), _ = await measure(parse(["--url", f"{rig.http}/v1", "--model", "other", *FEW]))
    assert result.good == []
    assert all(error.startswith("404: ") for error in result.errors)


def test_command_says_when_nothing_answers(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    command = [sys.executable, "bench/serving.py", "--url", "http://127.0.0.1:1/v1", "--json", str(file), *FEW]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Nothing was measured" in done.stderr
    assert not file.exists()


async def test_command_writes_rows(rig: GatewayRig, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.serving", "--url", f"{rig.http}/v1", "--json", str(file), *FEW
    )
    assert await process.wait() == 0
    rows = json.loads(file.read_text())
    assert list(rows[0]) == ["name", "value", "unit", "peer", "peer_value", "ratio", "command", "commit"]
    assert "bench" in rows[0]["command"]


async def test_beside_the_engine_alone(rig: GatewayRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.benchmark.work.LAST_ID", 399)  # the fake worker's vocabulary is small
    model = write_folder(tmp_path / "tiny", TinyShape(vocabulary=2000))
    address = f"127.0.0.1:{rig.gateway.grpc.port}"
    arguments = ["--grpc", address, "--engine", str(model), "--prompt", "ids", "--concurrency", "3", *FEW]
    (through, alone), rows = await measure(parse([*arguments, "--pid", f"here={os.getpid()}"]))
    assert [(each.tokens, each.error) for each in through.outcomes + alone.outcomes] == [(5, "")] * 8
    named = {row.name: row for row in rows}
    assert named["serving_throughput"].peer == "engine alone tiny"
    seconds, each = named["serving_cpu_here"].value, named["serving_cpu_here_per_token"].value
    assert seconds is not None
    assert each == pytest.approx(seconds / 20 * 1e6)  # of the gateway's tokens alone


async def test_the_engine_alone_refuses_with_a_sentence(rig: GatewayRig, tmp_path: Path) -> None:
    model = write_folder(tmp_path / "tiny", TinyShape(vocabulary=100))  # smaller than the ids of the benchmark
    address = f"127.0.0.1:{rig.gateway.grpc.port}"
    (_, alone), _ = await measure(parse(["--grpc", address, "--engine", str(model), "--prompt", "ids", *FEW]))
    assert "vocabulary size 100" in alone.outcomes[0].error
