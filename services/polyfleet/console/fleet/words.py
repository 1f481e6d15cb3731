"""Enumerations of the protos as words (`unknown` where this version knows none), and what is said of who is gone."""

from collections.abc import Mapping
from typing import Any

from polyfleet.v1 import fleet_pb2, operations_pb2

SCHEDULER_GONE = "The scheduler at {address} does not answer."
GATEWAY_GONE = "The gateway at {address} does not answer."
UNHEARD = "The scheduler has not been heard yet."


def _words(enumeration: Any, prefix: str) -> Mapping[int, str]:
    named = {value: name.removeprefix(prefix).lower() for name, value in enumeration.items()}
    return {value: word for value, word in named.items() if word != "unspecified"}


_STATES = _words(fleet_pb2.WorkerState, "WORKER_STATE_")
_HEALTH = _words(operations_pb2.DeviceHealth, "DEVICE_HEALTH_")
_BENCHMARKS = _words(operations_pb2.BenchmarkState, "BENCHMARK_STATE_")


def state_word(state: int) -> str:
    """Of a worker: `ready`, `loading` …"""
    return _STATES.get(state, "unknown")


def health_word(health: int) -> str:
    """Of a device: `healthy`, `unhealthy` or `unknown`."""
    return _HEALTH.get(health, "unknown")


def benchmark_word(state: int) -> str:
    """Of a benchmark: `running`, `finished` …"""
    return _BENCHMARKS.get(state, "unknown")
