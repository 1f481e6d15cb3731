"""Where a step's time goes: the device's by kernel, what it waits between them, and the host's."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from polyfleet.engine.executor import Executor, Pending, StepOutput
from polyfleet.engine.step.plan import StepPlan
from polyfleet.sampling.masks import Masks


@dataclass(frozen=True, slots=True)
class Case:
    """Steps to account: what makes ready for them and gives what runs one, and how many."""

    title: str
    ready: Callable[[], AbstractContextManager[Callable[[], Any]]]
    steps: int


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of a step, means over some, with nothing recorded."""

    wall: float
    host: float  # the thread's own processor time, that of waiting for results aside
    waits: float  # in which the device has nothing to do, since the host has not given it the next step


@dataclass(frozen=True, slots=True)
class Account:
    """Milliseconds of a step, means over some."""

    title: str
    times: Times
    busy: float  # in which at least one kernel or copy runs
    kernels: tuple[tuple[str, float, float], ...]  # name, milliseconds, launches; those that take most first

    @property
    def idle(self) -> float:
        """The device's, between its kernels: those of a step, too."""
        return max(0.0, self.times.wall - self.busy)


class Timed:
    """An executor whose `collect`, in which the thread asks again and again whether the device is done, is timed.

    While `marks` is a list, events that stand before and behind each step on the device are added to it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor, self.seconds = executor, 0.0
        self.marks: list[Any] | None = None
        self.event: Callable[[], Any] = lambda: None  # a new one, that can be timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def launch(self, plan: StepPlan) -> Pending:
        """The executor's."""
        self._mark()
        return self._executor.launch(plan)

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """The executor's."""
        self._executor.draw(pending, masks)
        self._mark()

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """The executor's, whose processor time counts as waiting."""
        started = time.thread_time()
        try:
            return self._executor.collect(pending, timeout)
        finally:
            self.seconds += time.thread_time() - started

    def _mark(self) -> None:
        if self.marks is not None:
            self.marks.append(self.event())
            self.marks[-1].record()


def account(cases: Sequence[Case], executor: Timed, device: torch.device) -> list[Account]:
    """Each of the cases. All are timed before kernels of any are recorded: from then on the process is slower."""
    times = [_timed(each, executor, device) for each in cases]
    return [_recorded(each, found, device) for each, found in zip(cases, times, strict=True)]


def _timed(case: Case, executor: Timed, device: torch.device) -> Times:
    module = torch.get_device_module(device)
    with case.ready() as step:
        module.synchronize()
        cpu, started = time.thread_time() - executor.seconds, time.perf_counter()
        for _ in range(case.steps):
            step()
        host, wall = time.thread_time() - executor.seconds - cpu, time.perf_counter() - started
        if device.type == "cpu":
            return Times(wall / case.steps * 1e3, host / case.steps * 1e3, 0.0)
        executor.marks, executor.event = [], partial(module.Event, enable_timing=True)
        for _ in range(case.steps):
            step()
        module.synchronize()
        marks, executor.marks = executor.marks, None
    return Times(wall / case.steps * 1e3, host / case.steps * 1e3, waits(marks) / case.steps)


def waits(marks: Sequence[Any]) -> float:
    """Milliseconds between steps, of events before and behind each of them in turn."""
    between = zip(marks[1::2], marks[2::2], strict=False)
    found: float = sum(behind.elapsed_time(before) for behind, before in between)
    return found


def _recorded(case: Case, times: Times, device: torch.device) -> Account:
    from torch.profiler import ProfilerActivity, profile

    with case.ready() as step, profile(activities=[ProfilerActivity.CUDA]) as records:
        for _ in range(case.steps):
            step()
        torch.get_device_module(device).synchronize()
    events = [each for each in records.events() if each.device_type.name != "CPU"]
    busy = _union((each.time_range.start, each.time_range.end) for each in events)
    spent: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for each in events:
        spent[each.name] += each.time_range.end - each.time_range.start
        launches[each.name] += 1
    rows = tuple((name, micro / case.steps / 1e3, launches[name] / case.steps) for name, micro in spent.most_common())
    return Account(case.title, times, busy / case.steps / 1e3, rows)


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what at least one of the spans covers."""
    total = end = 0.0
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def table(title: str, found: Account, most: int = 12) -> str:
    """For people."""
    times = found.times
    lines = [
        f"{title}: {times.wall:.3f} ms a step; device {found.busy:.3f}, idle {found.idle:.3f},"
        f" of which {times.waits:.3f} for the host; host {times.host:.3f}"
    ]
    lines += [f"  {ms:9.3f} ms {count:7.1f} x  {name[:80]}" for name, ms, count in found.kernels[:most]]
    rest = found.kernels[most:]
    if rest:
        lines.append(f"  {sum(ms for _, ms, _ in rest):9.3f} ms {sum(n for _, _, n in rest):7.1f} x  all else")
    return "\n".join(lines)
