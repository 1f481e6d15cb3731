"""/metrics of the real worker process, read over HTTP."""

import asyncio
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.running_worker import RunningWorker

from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc

Samples = dict[str, float]
LABELLED = {
    "polyfleet_sequences_running", "polyfleet_sequences_waiting",
    "polyfleet_kv_blocks_used", "polyfleet_kv_blocks_free", "polyfleet_kv_cache_usage_ratio",
    "polyfleet_kv_block_tokens", "polyfleet_engine_peak_tokens_per_second",
    "polyfleet_prefix_cache_queries_total", "polyfleet_prefix_cache_hits_total",
    "polyfleet_engine_prompt_tokens_total", "polyfleet_engine_generation_tokens_total",
    "polyfleet_engine_steps_total", "polyfleet_engine_step_seconds_total", "polyfleet_preemptions_total",
    "polyfleet_engine_dropped_rows_total", "polyfleet_kv_evictions_total",
    "polyfleet_prefix_fetched_tokens_total", "polyfleet_prefix_given_tokens_total",
    "polyfleet_prompts_for_others_total", "polyfleet_prefix_restored_tokens_total", "polyfleet_kv_host_blocks",
    "polyfleet_prefix_disk_tokens_total", "polyfleet_kv_disk_blocks",
    "polyfleet_engine_memory_shortages_total",
    "polyfleet_engine_drafts_total", "polyfleet_engine_accepted_drafts_total",
}  # fmt: skip
OWN_LABEL = {
    "polyfleet_engine_ledger_sequences": "state",
    "polyfleet_canary_runs_total": "result",
    "polyfleet_prefix_fetches_total": "outcome",
    "polyfleet_prefills_apart_total": "outcome",
    "polyfleet_kv_disk_problems_total": "problem",
}
OF_THE_PROCESS = ("polyfleet_build", "polyfleet_event_loop_lag", "process_", "engine_process_", "python_")
CANARY_RUNS = {f"polyfleet_canary_runs_total {result}" for result in ("right", "wrong", "failed", "no_reference")}


async def scrape(worker: RunningWorker) -> Samples:
    """Values by name; of OWN_LABEL by name and label. Checks labels, but not those of devices and of the process."""

    def get() -> str:
        with urllib.request.urlopen(f"http://{worker.lock.metrics_address}/metrics") as answer:
            return str(answer.read().decode())

    samples: Samples = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(get)):
        if family.name.startswith("polyfleet_device_"):
            continue
        if family.name.startswith(OF_THE_PROCESS):
            samples |= {f"own {sample.name}": sample.value for sample in family.samples}
            continue
        for sample in family.samples:
            if (label := OWN_LABEL.get(sample.name)) is not None:
                assert set(sample.labels) == {label}
                samples[f"{sample.name} {sample.labels[label]}"] = sample.value
            else:
                assert sample.labels["accelerator"] == "cpu"
                assert sample.labels["model"] in ("fake", "")
                bound = f" {sample.labels['le']}" if "le" in sample.labels else ""
                samples[sample.name + bound] = sample.value
    return samples


def check_idle(figures: Samples) -> None:
    """What a worker's figures are before its first sequence."""
    assert figures.keys() >= LABELLED
    assert figures["polyfleet_worker_ready"] == 1
    assert figures["own polyfleet_build_info"] == 1
    assert "own polyfleet_event_loop_lag_seconds_count" in figures
    if sys.platform == "linux":
        own, engine = (figures[f"own {of}process_resident_memory_bytes"] for of in ("", "engine_"))
        assert own != engine
        assert min(own, engine) > 0
    assert (figures["polyfleet_kv_blocks_free"], figures["polyfleet_kv_blocks_used"]) == (1000, 0)
    assert figures["polyfleet_kv_block_tokens"] == 16


async def test_figures_follow_the_engine_and_leave_with_the_model(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:step_seconds=0.01,max_sequences=2,canary=0") as worker:
        check_idle(await scrape(worker))

        async with worker.session() as session:
            for name in ("a", "b", "c"):
                await session.start(pb.StartSequence(sequence_id=name, prompt_ids=[1, 2], max_tokens=50_000))
            while (await session.event()).status.waiting_sequences != 1:
                pass
            busy = await scrape(worker)
            assert (busy["polyfleet_sequences_running"], busy["polyfleet_sequences_waiting"]) == (2, 1)
            assert busy["polyfleet_kv_blocks_used"] == 2
            assert busy["polyfleet_kv_cache_usage_ratio"] == 0.002
            for name in ("c", "a", "b"):  # the one that waits first: another's end would give it a place
                await session.cancel(name)
            await session.start(pb.StartSequence(sequence_id="d", prompt_ids=[1], max_tokens=7))
            await session.run_to_end()

        done, status = await scrape(worker), (await worker.status()).status
        assert done["polyfleet_engine_prompt_tokens_total"] == 7
        assert done["polyfleet_engine_generation_tokens_total"] == status.counters.generated_tokens >= 7
        assert done["polyfleet_engine_steps_total"] == status.step
        assert done["polyfleet_engine_step_seconds_total"] == status.counters.step_seconds > 0
        assert done["polyfleet_engine_step_duration_seconds_count"] == status.step
        assert done["polyfleet_engine_step_duration_seconds_sum"] == pytest.approx(status.counters.step_seconds)
        assert done["polyfleet_engine_step_duration_seconds_bucket 0.01"] == 0  # each takes longer
        assert done["polyfleet_engine_step_duration_seconds_bucket +Inf"] == status.step
        assert done["polyfleet_engine_step_rows_bucket 2.0"] == done["polyfleet_engine_step_rows_count"] == status.step
        assert done["polyfleet_engine_queue_seconds_count"] == 4 - 1  # "c" was cancelled before it had a place
        ledger = {key.split()[1]: value for key, value in done.items() if key.startswith("polyfleet_engine_ledger")}
        assert ledger == {"admitted": 4, "finished": 1, "failed": 0, "cancelled": 3, "running": 0, "waiting": 0}

        async with grpc.aio.insecure_channel(worker.address) as channel:
            await worker_pb2_grpc.WorkerStub(channel).Unload(pb.UnloadRequest())
        empty = {name: value for name, value in (await scrape(worker)).items() if not name.startswith("own ")}
        of_the_worker = {"polyfleet_worker_ready", "polyfleet_engine_replacements_total", *CANARY_RUNS}
        assert empty == dict.fromkeys(of_the_worker, 0)
