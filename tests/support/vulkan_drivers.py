"""Driving the Vulkan executor on a software device beside the eager one."""

import pytest
from tests.support.stepping import Driver

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.backends.registry import BackendRegistry
from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.vulkan import VulkanExecutor
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions


def choose_software(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the software device; skips the test where there is none."""
    monkeypatch.setenv("POLYFLEET_VULKAN_SOFTWARE", "1")
    if BackendRegistry.find("vulkan") is None:
        pytest.skip("no Vulkan device: apt install mesa-vulkan-drivers libvulkan1")


class Drivers:
    """Drives executors, and closes them behind the test."""

    def __init__(self) -> None:
        self.executors: list[VulkanExecutor] = []

    def vulkan(self, model: LoadedModel, num_blocks: int = 64, step_tokens: int = 256) -> Driver:
        executor = VulkanExecutor(workload(model, "vulkan"))
        self.executors.append(executor)
        return Driver(executor, num_blocks, max_sequences=8, step_tokens=step_tokens)

    def close(self) -> None:
        for each in self.executors:
            each.close()

    def pair(self, model: LoadedModel, num_blocks: int = 64) -> tuple[Driver, Driver]:
        """The eager executor and the Vulkan one, driven alike."""
        eager = EagerExecutor(workload(model, "cpu"))
        return Driver(eager, num_blocks, max_sequences=8), self.vulkan(model, num_blocks)


def workload(model: LoadedModel, device: str) -> Workload:
    capabilities = KernelCapabilities(frozenset({"float32"}), "float32")
    graph = record(model.config, model.weights)
    return Workload(graph, model.weights, EngineOptions(), device, "float32", capabilities)
