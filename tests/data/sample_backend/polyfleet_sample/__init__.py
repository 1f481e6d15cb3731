"""A backend for a made-up vendor, whose tool is `samplectl` and whose torch extension would be `torch_sample`.

How MetaX, Iluvatar, Kunlun or Moore Threads come in: state the facts, parse the vendor's tool, name the capabilities.
"""

from typing import ClassVar

from polyfleet.backends.accelerator import AcceleratorBackend, Collectives
from polyfleet.backends.cpu import CpuBackend
from polyfleet.backends.protocol import DeviceInfo, KernelCapabilities, MemoryInfo
from polyfleet.backends.reading import DeviceReading, ProbeResult, mebibytes, number
from polyfleet.backends.torch_build import TorchBuild, installed


class SampleBackend(AcceleratorBackend):
    """One line of `samplectl list` a device: `0,Sample One,16384 MiB,41 C`."""

    type = "sample"  # the entry point's name; BackendType has no member for third parties
    vendor = "Sample"
    pci_vendor = "0xabcd"
    torch_name = "sample"
    extension = "torch_sample"
    visible_variable = "SAMPLE_VISIBLE_DEVICES"
    collectives: ClassVar[Collectives] = Collectives("sccl", "SCCL")

    def missing_software(self, build: TorchBuild) -> str:
        """The torch extension."""
        return "" if installed("torch_sample") else "a Sample device is present, but torch_sample is not installed"

    def probe(self) -> ProbeResult:
        """`samplectl list`."""
        result = self._host.run(("samplectl", "list"), 5.0)
        if result.problem:
            return ProbeResult(problem=result.problem, absent=result.problem.endswith("is not installed"))
        rows = [line.split(",") for line in result.output.splitlines() if line.count(",") == 3]
        return ProbeResult(
            tuple(
                DeviceReading(
                    index=index,
                    name=name,
                    architecture="s1",
                    memory_total_bytes=mebibytes(memory),
                    temperature_celsius=number(heat),
                )
                for index, (_, name, memory, heat) in enumerate(rows)
            )
        )

    def present(self) -> bool:
        """By PCI; or by the tool, for Sample Ones are plugged into USB, too."""
        return super().present() or bool(self.probe().readings)

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """Its executor is this package's own, named as entry points are: `name = module:class`."""
        return KernelCapabilities(
            frozenset({"float32", "float16"}),
            "float32",
            executors=("sample = polyfleet_sample.executor:SampleExecutor",),
        )

    def activate(self, index: int = 0) -> str:
        """torch's name for the device; torch has none here, and the executor alone opens it."""
        return f"{self.torch_name}:{index}"

    def memory(self, index: int = 0) -> MemoryInfo:
        """The host's, for that is where the executor keeps everything."""
        return CpuBackend().memory()

    def synchronize(self, index: int = 0) -> None:
        """The executor waits by itself."""
