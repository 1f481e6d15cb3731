"""What certificates between the parts, keys and quotas cost a gateway: processor time a token, time to the first token.

    python -m bench.trust [--seconds N] [--json FILE]

Two fleets side by side, each a gateway and a simulated worker in processes of their own and a scheduler here: one with
TLS between all parts, keys of roles, a caller's key and quotas, one with none of these. Rounds of the same requests
alternate between them. Rows have the guarded fleet's figure, the open one's as peer. The first token's are the median
and, since what else the machine does only adds, the tenth percentile; `first_token_added` is what the medians of each
round of both differ by, in the median of all rounds.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import yaml
from bench.command import above_zero, parser_of, positive, run
from bench.report import Row, compare, publish
from tests.support.fake_cluster import FakeCluster
from tests.support.fleet_certificates import Roots

from polyfleet.benchmark.work import percentile
from polyfleet.client import AsyncClient
from polyfleet.process.listening import free_addresses
from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.scheduler.scheduler import Scheduler

MODEL, KEY, TOKENS, AT_ONCE = "simulated", "pf-bench", 128, 16
PARTS = ("scheduler", "worker", "gateway")
WORKER = {"prefill_tokens_per_second": 1e6, "step_seconds": 0.005, "sequence_seconds": 1e-5}


class Fleet:
    """One of the two. Its processes are started by `start` and ended by `stop`."""

    def __init__(self, folder: Path, *, guarded: bool) -> None:
        folder.mkdir()
        names = ("fleet", "metrics", "grpc", "http", "monitoring")
        self._at = dict(zip(names, free_addresses(len(names)), strict=True))
        self._folder, self._guarded, self._processes = folder, guarded, list[subprocess.Popen[bytes]]()
        self.cpu, self.tokens = 0.0, 0
        self.firsts: list[list[float]] = []  # of each round

    async def start(self) -> None:
        """Up, and with a worker that is ready."""
        section, gateway, environ = self._guards() if self._guarded else ({}, {}, {})
        config = SchedulerConfig(
            listen=self._at["fleet"], metrics_listen=self._at["metrics"], state_dir=str(self._folder), **section
        )
        self._scheduler = Scheduler(config, FakeCluster())
        await self._scheduler.start()
        gateway |= {f"{name}_listen": self._at[name] for name in ("grpc", "http")}
        gateway |= {"metrics_listen": self._at["monitoring"], "fleet": self._at["fleet"], "log_level": "warning"}
        (self._folder / "gateway.yaml").write_text(yaml.safe_dump({"gateway": gateway}))
        group = {"name": "one", "accelerator": "cpu", "steps": WORKER, "max_sequences": 64, "kv_tokens": 100_000}
        (self._folder / "fleet.yaml").write_text(yaml.safe_dump({"groups": [group]}))
        self._run(["polyfleet.gateway", f"--config={self._folder}/gateway.yaml"], {})
        worker = ["polyfleet.cli", "simulate-workers", f"{self._folder}/fleet.yaml", "--only=one-0"]
        self._run([*worker, f"--model={MODEL}", f"--fleet={self._at['fleet']}"], environ)
        key = KEY if self._guarded else None
        self._client = AsyncClient(self._at["grpc"], api_key=key, timeout=60)
        for _ in range(600):
            await asyncio.sleep(0.1)
            try:
                await self._client.generate("warm", model=MODEL, max_tokens=4)
                return
            except Exception as error:  # not up yet
                problem = error
        raise problem

    def _guards(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """The scheduler's section, the gateway's, and the worker's environment."""
        roots = Roots()
        tls = {part: str(roots.write(self._folder / part, part)) for part in PARTS}
        for part in PARTS:
            (self._folder / f"{part}.token").write_text(f"pf-{part}\n")
        keys = [{"id": part, "role": part, "hash": sha256(f"pf-{part}".encode()).hexdigest()} for part in PARTS]
        (self._folder / "parts.yaml").write_text(yaml.safe_dump({"keys": keys}))
        caller = {"id": "bench", "hash": sha256(KEY.encode()).hexdigest()}
        quota = {"id": "bench", "tokens_per_minute": 10**12, "max_concurrent": 1000}
        (self._folder / "callers.yaml").write_text(yaml.safe_dump({"keys": [caller], "tenants": [quota]}))
        tokens, parts = {each: f"{self._folder}/{each}.token" for each in PARTS}, f"{self._folder}/parts.yaml"
        callers = f"{self._folder}/callers.yaml"
        scheduler = {"fleet_keys_file": parts, "keys_file": callers, "fleet_tls_dir": tls["scheduler"]}
        gateway = {"keys_file": callers, "fleet_tls_dir": tls["gateway"], "fleet_token_file": tokens["gateway"]}
        worker = {"FLEET_KEYS_FILE": parts, "FLEET_TLS_DIR": tls["worker"], "FLEET_TOKEN_FILE": tokens["worker"]}
        environ = {f"POLYFLEET_{name}": value for name, value in worker.items()}
        return {**scheduler, "fleet_token_file": tokens["scheduler"]}, gateway, environ

    def _run(self, module: list[str], environ: dict[str, str]) -> None:
        command = [sys.executable, "-m", *module]
        self._processes.append(subprocess.Popen(command, env={**os.environ, **environ}, stdin=subprocess.DEVNULL))

    async def round(self, seconds: float) -> None:
        """Requests side by side for so long, for the gateway's time; then one by one, for the first token."""
        gateway = psutil.Process(self._processes[0].pid)

        async def client(number: int, end: float, max_tokens: int) -> list[float]:
            firsts = []
            while time.monotonic() < end:
                began, first = time.monotonic(), 0.0
                async with self._client.stream(f"bench {number}", model=MODEL, max_tokens=max_tokens) as stream:
                    async for delta in stream:
                        first = first or time.monotonic() - began
                        self.tokens += len(delta.token_ids) * (max_tokens == TOKENS)
                firsts.append(first)
            return firsts

        before, end = gateway.cpu_times(), time.monotonic() + seconds
        await asyncio.gather(*(client(number, end, TOKENS) for number in range(AT_ONCE)))
        after = gateway.cpu_times()
        self.cpu += after.user + after.system - before.user - before.system
        self.firsts.append(await client(0, time.monotonic() + seconds, 1))

    async def stop(self) -> None:
        """End what was started."""
        await self._client.close()
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60)
        await self._scheduler.stop()


async def measured(seconds: float, rounds: int) -> tuple[Fleet, Fleet]:
    """The guarded and the open fleet, after their rounds."""
    with tempfile.TemporaryDirectory() as folder:
        fleets = [Fleet(Path(folder, name), guarded=name == "guarded") for name in ("guarded", "open")]
        for fleet in fleets:
            await fleet.start()
        for number in range(rounds):
            for fleet in fleets if number % 2 else reversed(fleets):
                await fleet.round(seconds)
        for fleet in fleets:
            await fleet.stop()
    return fleets[0], fleets[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=above_zero, default=3.0, help="of each round (default: 3)")
    parser.add_argument("--rounds", type=positive, default=6, help="of each fleet (default: 6)")
    options = parser.parse_args(arguments)
    guarded, plain = asyncio.run(measured(options.seconds, options.rounds))
    publish(rows_of(guarded, plain), options.json)
    return 0


def rows_of(guarded: Fleet, plain: Fleet) -> list[Row]:
    """What was measured, side by side."""
    cpu = [1e6 * each.cpu / each.tokens for each in (guarded, plain)]
    rows = [compare("gateway_cpu_per_token", cpu[0], "us", "open", cpu[1], lower_is_better=True)]
    firsts = [[first for found in each.firsts for first in found] for each in (guarded, plain)]
    for percent in (10, 50):
        mine, theirs = (1e3 * percentile(each, percent / 100) for each in firsts)
        rows.append(compare(f"first_token_p{percent}", mine, "ms", "open", theirs, lower_is_better=True))
    pairs = zip(guarded.firsts, plain.firsts, strict=True)
    added = statistics.median(statistics.median(mine) - statistics.median(theirs) for mine, theirs in pairs)
    return [*rows, Row("first_token_added", 1e3 * added, "ms")]


if __name__ == "__main__":
    run(main)
