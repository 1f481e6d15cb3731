"""Fake vendor modules with exactly the calls that each vendor documents: any other attribute fails the test."""

from contextlib import contextmanager
from types import ModuleType
from typing import Any

GIB = 2**30


class Surface(ModuleType):
    """A module that knows its documented names only, and remembers what was called."""

    def __init__(self, name: str, **members: Any) -> None:
        super().__init__(name)
        self.__dict__["calls"] = []
        for key, value in members.items():
            self.__dict__[key] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"{self.__name__}.{name} is not in the vendor's documented surface")


class FakeGraph:
    """What capture fills."""

    captured = False
    breakers = ""  # whose calls break the capture, where the vendor's torch lets one choose

    def replay(self) -> None:
        assert self.captured


@contextmanager
def fake_capture(graph: FakeGraph, pool: Any = None, capture_error_mode: str = "global") -> Any:
    graph.breakers = capture_error_mode
    yield graph
    graph.captured = True


@contextmanager
def fake_xpu_capture(graph: FakeGraph, pool: Any = None) -> Any:
    yield graph
    graph.captured = True


def device_module(name: str, graph_class: str | None) -> Surface:
    """torch.<name> of an accelerator with indexed devices."""
    module = Surface(f"torch.{name}")
    members: dict[str, Any] = {
        "set_device": lambda index: module.calls.append(("set_device", index)),
        "mem_get_info": lambda index=0: (60 * GIB, 64 * GIB),
        "synchronize": lambda index=0: module.calls.append(("synchronize", index)),
        "device_count": lambda: 2,
    }
    if graph_class is not None:
        members |= {graph_class: FakeGraph, "graph": fake_xpu_capture if name == "xpu" else fake_capture}
    module.__dict__.update(members)
    return module


def mps_module() -> Surface:
    """torch.mps: one device, no index, no free-memory query, no graphs."""
    module = Surface("torch.mps")
    module.__dict__.update(
        recommended_max_memory=lambda: 48 * GIB,
        driver_allocated_memory=lambda: 8 * GIB,
        synchronize=lambda: module.calls.append(("synchronize",)),
        device_count=lambda: 1,
    )
    return module


def fake_torch(name: str, graph_class: str | None) -> Surface:
    """A torch with one accelerator's device module."""
    module = mps_module() if name == "mps" else device_module(name, graph_class)
    torch = Surface("torch")
    torch.__dict__[name] = module
    return torch
