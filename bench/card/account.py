"""Where a step's time goes: the device's by kernel, what it waits between them, and the host's."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from polyfleet.engine.executor import Executor, Pending, StepOutput


@dataclass(frozen=True, slots=True)
class Account:
    """Milliseconds of a step, means over some."""

    wall: float
    host: float  # the thread's own processor time, that of waiting for results aside
    busy: float  # in which at least one kernel or copy runs
    kernels: tuple[tuple[str, float, float], ...]  # name, milliseconds, launches; those that take most first

    @property
    def idle(self) -> float:
        """The device's, between its kernels."""
        return max(0.0, self.wall - self.busy)


class Timed:
    """An executor whose `collect`, in which the thread asks again and again whether the device is done, is timed."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self.seconds = executor, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """The executor's, whose processor time counts as waiting."""
        started = time.thread_time()
        try:
            return self._executor.collect(pending, timeout)
        finally:
            self.seconds += time.thread_time() - started


def account(step: Callable[[], Any], steps: int, executor: Timed, device: torch.device) -> Account:
    """Run `steps` steps twice: once timed alone, once with every kernel recorded."""
    from torch.profiler import ProfilerActivity, profile

    wait = torch.get_device_module(device).synchronize
    wait()
    cpu, started = time.thread_time() - executor.seconds, time.perf_counter()
    for _ in range(steps):
        step()
    host, wall = time.thread_time() - executor.seconds - cpu, time.perf_counter() - started
    with profile(activities=[ProfilerActivity.CUDA]) as records:
        for _ in range(steps):
            step()
        wait()
    events = [each for each in records.events() if each.device_type.name != "CPU"]
    busy = _union((each.time_range.start, each.time_range.end) for each in events)
    spent: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for each in events:
        spent[each.name] += each.time_range.end - each.time_range.start
        launches[each.name] += 1
    rows = tuple((name, micro / steps / 1e3, launches[name] / steps) for name, micro in spent.most_common())
    return Account(wall / steps * 1e3, host / steps * 1e3, busy / steps / 1e3, rows)


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what at least one of the spans covers."""
    total = end = 0.0
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def table(title: str, found: Account, most: int = 12) -> str:
    """For people."""
    lines = [
        f"{title}: {found.wall:.3f} ms a step; device {found.busy:.3f}, idle {found.idle:.3f}; host {found.host:.3f}"
    ]
    lines += [f"  {ms:9.3f} ms {count:7.1f} x  {name[:80]}" for name, ms, count in found.kernels[:most]]
    rest = found.kernels[most:]
    if rest:
        lines.append(f"  {sum(ms for _, ms, _ in rest):9.3f} ms {sum(n for _, _, n in rest):7.1f} x  all else")
    return "\n".join(lines)
