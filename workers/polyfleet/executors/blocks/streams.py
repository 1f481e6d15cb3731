"""The orders in which a device does what it is asked, as torch's devices have them: streams, and places in them."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from polyfleet.engine.executor import DeviceTimeout

POLL_SECONDS = 2e-5  # between two questions whether the device is done

Work = Callable[[], None]


class Mark(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether the device has come there."""
        ...


class Stream(Protocol):
    """An order of work on the device, as torch has it."""

    def record_event(self) -> Any:
        """The place behind all that it was given so far: a Mark."""
        ...

    def wait_event(self, event: Any) -> None:
        """What it is given from now on is done behind a mark."""
        ...


class Streams(Protocol):
    """The orders of work of one device."""

    shared: bool  # any thread may give them work, while another one does

    @property
    def steps(self) -> Stream:
        """In which steps are done."""
        ...

    def new(self) -> Stream:
        """One more."""
        ...

    def do(self, stream: Any, work: Work) -> None:
        """Give a stream what `work` asks of the device."""
        ...


class DeviceStreams:
    """Of a device that works while the host goes on."""

    shared = True

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)

    @property
    def steps(self) -> Stream:
        """The one that torch uses where nothing else is said."""
        current: Stream = self._module.current_stream(self._device)
        return current

    def new(self) -> Stream:
        """See Streams."""
        made: Stream = self._module.Stream(self._device)
        return made

    def do(self, stream: Any, work: Work) -> None:
        """See Streams."""
        with self._module.stream(stream), torch.inference_mode():
            work()


class OneStream:
    """The only stream of a device, whose torch module has events alone; and the orders of work of that device."""

    shared = False

    def __init__(self, device: torch.device) -> None:
        self._module = torch.get_device_module(device)

    @property
    def steps(self) -> Stream:
        """See Streams."""
        return self

    def new(self) -> Stream:
        """See Streams."""
        return self

    def record_event(self) -> Any:
        """See Stream."""
        event = self._module.Event()
        event.record()
        return event

    def wait_event(self, event: object) -> None:
        """What it was given before is done before."""

    def do(self, stream: Stream, work: Work) -> None:
        """See Streams."""
        with torch.inference_mode():
            work()


class _AtOnce:
    """The stream of a device that does what it is asked before it answers, and its marks."""

    def record_event(self) -> "_AtOnce":
        return self

    def wait_event(self, event: object) -> None:
        pass

    def query(self) -> bool:
        return True


class HostStreams:
    """Of a device on which all is done at once."""

    shared = True
    steps: Stream = _AtOnce()

    def new(self) -> Stream:
        """See Streams."""
        return self.steps

    def do(self, stream: Any, work: Work) -> None:
        """See Streams."""
        with torch.inference_mode():
            work()


def streams_of(device: torch.device, *, asynchronous: bool) -> Streams:
    """Of a device; `asynchronous`: it works while the host goes on."""
    if not asynchronous:
        return HostStreams()
    module = torch.get_device_module(device)
    return DeviceStreams(device) if hasattr(module, "Stream") else OneStream(device)


def wait_for(mark: Mark, seconds: float, what: str) -> None:
    """Until a device has come there; raises DeviceTimeout, which says what it did not finish."""
    deadline = time.monotonic() + seconds
    while not mark.query():
        if time.monotonic() > deadline:
            raise DeviceTimeout(f"the device did not finish {what} within {seconds:g} s")
        time.sleep(POLL_SECONDS)
