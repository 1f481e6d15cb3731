"""One Vulkan device through wgpu: buffers, pipelines by shader and constants, and the dispatches of a step."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from polyfleet.backends.vulkan import SOFTWARE_VARIABLE

WORKGROUP = 64
FEW_ROWS = 2


class VulkanError(ValueError):
    """The device can't do what the model needs; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One shader run: `groups` gives the workgroup counts from the rows of the step."""

    pipeline: Any
    bind_group: Any
    width: int  # workgroups in x
    rows_per_group: int  # rows that one workgroup in y covers
    selected: bool  # rows are the S selected ones, not all T
    few: "Dispatch | None" = None  # what to run instead for at most FEW_ROWS rows


@dataclass(slots=True)
class VulkanDevice:
    """A device and what was compiled for it."""

    adapter: Any
    device: Any
    _pipelines: dict[tuple[str, tuple[tuple[str, float], ...]], Any] = field(default_factory=dict)

    @classmethod
    def open(cls) -> "VulkanDevice":
        """The first Vulkan adapter; software ones only when POLYFLEET_VULKAN_SOFTWARE=1."""
        import wgpu

        adapters = [each for each in wgpu.gpu.enumerate_adapters_sync() if each.info["backend_type"] == "Vulkan"]
        hardware = [each for each in adapters if each.info["adapter_type"] != "CPU"]
        chosen = hardware or (adapters if os.environ.get(SOFTWARE_VARIABLE) == "1" else [])
        if not chosen:
            hint = f"; set {SOFTWARE_VARIABLE}=1 to use the software one" if adapters else ""
            raise VulkanError(f"there is no Vulkan device here{hint}")
        adapter = chosen[0]
        wanted = ("max-storage-buffer-binding-size", "max-buffer-size", "max-storage-buffers-per-shader-stage")
        limits = {name: adapter.limits[name] for name in wanted}
        return cls(adapter, adapter.request_device_sync(required_limits=limits))

    @property
    def name(self) -> str:
        """As the driver names it."""
        return str(self.adapter.info["device"])

    def buffer(self, size: int, name: str) -> Any:
        """A zeroed storage buffer of `size` bytes that can be written and read back; VulkanError where it can't be."""
        import wgpu

        limit = int(self.adapter.limits["max-storage-buffer-binding-size"])
        if size > limit:
            raise VulkanError(f"{name} needs a buffer of {size} bytes, but {self.name} binds {limit} at most")
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        return self.device.create_buffer(size=max(16, size), usage=usage)

    def close(self) -> None:
        """Give the device back, with all its buffers."""
        self.device.destroy()

    def uniform(self, size: int = 16) -> Any:
        """A small uniform buffer."""
        import wgpu

        return self.device.create_buffer(size=size, usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST)

    def write(self, buffer: Any, data: Any, offset: int = 0) -> None:
        """Copy bytes (anything contiguous with the buffer protocol) into a buffer, behind all submitted work."""
        if data.nbytes:
            self.device.queue.write_buffer(buffer, offset, data)

    def read(self, buffer: Any, size: int, offset: int = 0) -> memoryview:
        """`size` bytes of a buffer, once all submitted work is done."""
        view: memoryview = self.device.queue.read_buffer(buffer, offset, size)
        return view

    def read_pieces(self, buffer: Any, offsets: Sequence[int], size: int) -> bytes:
        """Pieces of `size` bytes at these offsets of a buffer, one behind the other."""
        if not offsets:
            return b""
        first, total = offsets[0], len(offsets) * size
        if list(offsets) == list(range(first, first + total, size)):  # they lie side by side
            return bytes(self.read(buffer, total, first))
        pieces = self.buffer(len(offsets) * size, "a copy of some blocks")
        encoder = self.device.create_command_encoder()
        for at, offset in enumerate(offsets):
            encoder.copy_buffer_to_buffer(buffer, offset, pieces, at * size, size)
        self.device.queue.submit([encoder.finish()])
        return bytes(self.read(pieces, len(offsets) * size))

    def clear_pieces(self, buffers: Sequence[Any], offsets: Sequence[int], size: int) -> None:
        """Make pieces of `size` bytes at these offsets of each buffer 0."""
        encoder = self.device.create_command_encoder()
        for buffer in buffers:
            for offset in offsets:
                encoder.clear_buffer(buffer, offset, size)
        self.device.queue.submit([encoder.finish()])

    def pipeline(self, shader: str, constants: Mapping[str, float]) -> Any:
        """The compiled shader with its override constants; compiled once."""
        key = (shader, tuple(sorted(constants.items())))
        if key not in self._pipelines:
            code = (files("polyfleet.kernels.vulkan") / "shaders" / f"{shader}.wgsl").read_text()
            module = self.device.create_shader_module(code=code)
            stage = {"module": module, "entry_point": "main", "constants": dict(constants)}
            self._pipelines[key] = self.device.create_compute_pipeline(layout="auto", compute=stage)
        return self._pipelines[key]

    def bind(self, pipeline: Any, buffers: Sequence[Any]) -> Any:
        """A bind group with the buffers in order of their bindings."""
        entries = [
            {"binding": index, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for index, buffer in enumerate(buffers)
        ]
        return self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def submit(self, dispatches: Sequence[Dispatch], rows: int, selected: int) -> None:
        """Run dispatches in order; each sees what those before it wrote."""
        encoder = self.device.create_command_encoder()
        run = encoder.begin_compute_pass()
        for each in dispatches:
            count = selected if each.selected else rows
            chosen = each.few if each.few is not None and count <= FEW_ROWS else each
            if count > 0:
                run.set_pipeline(chosen.pipeline)
                run.set_bind_group(0, chosen.bind_group)
                run.dispatch_workgroups(chosen.width, -(-count // chosen.rows_per_group))
        run.end()
        self.device.queue.submit([encoder.finish()])
