"""Faults in a fleet of real processes while streams run: no stream lost, no token wrong. `make chaos` has more."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from bench.chaos.clock import Clocks
from bench.chaos.disk import SmallDisk
from bench.chaos.fleet import ChaosFleet
from bench.chaos.network import network_problem
from bench.chaos.runs import disturbed, more, strike
from bench.report import Row
from bench.soaking.streams import Soak

CLIENTS, TOKENS = 6, 100
FAULTS = (
    ["kill-worker"],
    ["stop-engine", "kill-scheduler"],
    ["deaf-worker"],
    ["clock-ahead-gateway", "clock-ahead-worker", "clock-back-scheduler", "disk-full"],
    ["stop-scheduler", "half-open-worker"],
)
TIMES = "import time; print([time.time(), time.monotonic()])"


async def test_streams_outlive_kills_hangs_networks_clocks_and_a_full_disk() -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")  # shown when the test fails
    rng = random.Random(seed)
    async with ChaosFleet(workers=2, gateways=2, max_sequences=CLIENTS, host_faults=True) as fleet:

        async def disturb(run: Soak) -> list[Row]:
            for names in FAULTS:
                await strike(fleet, names, rng, more(run, 2 * CLIENTS))
            told = run.tally.told
            await strike(fleet, ["gateway-born"], rng, more(run, 2 * CLIENTS))
            return [Row("told", told, "streams")]

        tally, (told,) = await disturbed(fleet, disturb, clients=CLIENTS, tokens=TOKENS, seed=seed)
    assert (tally.wrong, tally.lost, told.value) == ([], [], 0)
    assert tally.finished.total() >= 2 * CLIENTS * (len(FAULTS) + 1)
    assert not fleet.folder.exists()


def test_streams_outlive_a_network_that_drops_packets_and_is_narrow(tmp_path: Path) -> None:
    if problem := network_problem():
        pytest.skip(problem)
    faults = "drop-worker,drop-scheduler,narrow-all"
    command = [sys.executable, "-m", "bench.chaos", "storm", "--faults", faults, "--json", str(tmp_path / "rows")]
    load = ["--workers", "2", "--gateways", "1", "--clients", str(CLIENTS), "--tokens", str(TOKENS)]
    ran = subprocess.run([*command, *load], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = {row["name"]: row["value"] for row in json.loads((tmp_path / "rows").read_text())}
    assert (rows["chaos_storm_wrong"], rows["chaos_storm_lost"], rows["chaos_storm_faults"]) == (0, 0, 3)
    assert rows["chaos_storm_finished"] > CLIENTS


@pytest.mark.parametrize("seconds", [7200, -7200])
def test_a_clock_that_is_set_leaves_monotonic_time_alone(seconds: int, tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    environ = {**os.environ, **clocks.environ("one")}

    def times() -> list[float]:
        return list(json.loads(subprocess.check_output([sys.executable, "-c", TIMES], env=environ)))

    right = times()
    clocks.set("one", seconds)
    wrong = times()
    assert abs(wrong[0] - right[0] - seconds) < 600
    assert 0 < wrong[1] - right[1] < 600


def test_a_small_disk_is_full_until_it_is_cleared(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path / "small").__enter__()
    except OSError as error:
        pytest.skip(str(error))
    write = [*disk.command, "dd", "if=/dev/zero", f"of={tmp_path}/small/file", "bs=4k", "count=1"]
    try:
        disk.fill()
        refused = subprocess.run(write, capture_output=True, text=True, check=False)
        assert (refused.returncode, "No space left" in refused.stderr) == (1, True)
        disk.clear()
        assert subprocess.run(write, capture_output=True, check=False).returncode == 0
    finally:
        disk.__exit__(None, None, None)
    assert not list((tmp_path / "small").iterdir())  # it was seen by nobody else
