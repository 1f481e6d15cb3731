"""A network namespace of the fleet's own, whose loopback can lose packets (iptables) and be narrow (tbf)."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

NARROW = "rate 4mbit burst 8kb latency 2s"
SET_UP = "ip link set lo mtu 1500 up"  # what is larger than its burst a tbf drops
TRIED = f"{SET_UP} && tc qdisc add dev lo root tbf {NARROW} && iptables -A INPUT -p tcp --dport 1 -j DROP"


def network_problem() -> str:
    """Why this user can't have such a network, in one sentence; empty where it can."""
    try:
        tried = subprocess.run(_within(TRIED), capture_output=True, text=True, check=False)
    except OSError as error:
        return f"There is no network of its own: {error}."
    return f"There is no network of its own: {tried.stderr.strip()[:200]}." if tried.returncode else ""


def enter_network(arguments: Sequence[str]) -> None:
    """Become `python -m bench.chaos ARGUMENTS` inside; returns where this process is inside already."""
    if os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{os.getppid()}/ns/net"):
        command = _within(f'{SET_UP} && exec "$@"', sys.executable, "-m", "bench.chaos", *arguments)
        os.execvp(command[0], command)


def _within(script: str, *arguments: str) -> list[str]:
    mapped = ["--map-root-user"] if os.geteuid() else []
    return ["unshare", "--net", *mapped, "sh", "-c", script, "sh", *arguments]


@asynccontextmanager
async def dropped(address: str) -> AsyncIterator[None]:
    """No packet reaches the port of this host:port, nor leaves it; nobody is told."""
    port = address.rpartition(":")[2]
    rules = [f"INPUT -p tcp --{way} {port} -j DROP" for way in ("dport", "sport")]
    _run(*(f"iptables -A {rule}" for rule in rules))
    try:
        yield
    finally:
        _run(*(f"iptables -D {rule}" for rule in rules))


@asynccontextmanager
async def narrowed() -> AsyncIterator[None]:
    """All that the fleet and its clients say to each other shares 4 Mbit/s."""
    _run(f"tc qdisc add dev lo root tbf {NARROW}")
    try:
        yield
    finally:
        _run("tc qdisc del dev lo root")


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True)
