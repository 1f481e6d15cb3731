"""CPU time of processes, as report rows."""

from collections.abc import Mapping

import psutil

from polyfleet.benchmark.rows import Row


class CpuClock:
    """CPU seconds (user and system) that named processes, without their children, use from construction on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._begin = {name: _cpu_seconds(process) for name, process in self._processes.items()}

    def rows(self, tokens: int) -> list[Row]:
        """Per process: CPU seconds, and microseconds for each of the run's generated tokens."""
        rows = []
        for name, process in self._processes.items():
            used = _cpu_seconds(process) - self._begin[name]
            rows.append(Row(f"serving_cpu_{name}", used, "s"))
            if tokens:
                rows.append(Row(f"serving_cpu_{name}_per_token", used / tokens * 1e6, "us"))
        return rows


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
