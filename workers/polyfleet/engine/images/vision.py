"""VisionTower: from the pixels of an image's crops to rows that stand in a prompt in the place of embeddings."""

import logging
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.choosing.executors import Workload, candidates
from polyfleet.engine.choosing.sizing import Machine
from polyfleet.engine.executor import FAULTS, Fault
from polyfleet.engine.graphs.program import GraphProgram, Site
from polyfleet.loading.model import VisionPart
from polyfleet.models.recorder import Recorder
from polyfleet.models.vision import CHANNELS, VisionConfig, record_connector, record_tower
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

log = logging.getLogger(__name__)

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VisionTower:
    """Both parts on the device of the model. Raises what its executors raise."""

    config: VisionConfig
    tower: GraphProgram
    connector: GraphProgram

    @classmethod
    def compile(cls, part: VisionPart, workload: Workload, machine: Machine) -> "VisionTower":
        """Beside the model of `workload`, in its dtype; raises ValueError where no executor runs it."""
        asked = workload.options
        options = EngineOptions(device=asked.device, dtype=asked.dtype, threads=asked.threads, executor="auto")
        names = candidates(options, machine.device, workload.capabilities)
        site = Site(asked.device, machine, workload.capabilities, options, workload.dtype, names)
        config = part.config
        tower = GraphProgram.compile(site, record_tower(config, Recorder(config)), part.weights, rows=config.patches**2)
        try:
            site = replace(site, machine=replace(machine, free_bytes=max(0, machine.free_bytes - tower.num_bytes)))
            graph = record_connector(config, Recorder(config))
            connector = GraphProgram.compile(site, graph, part.weights, rows=config.rows)
        except BaseException:
            with suppress(Exception):  # what went wrong before is the reason
                tower.close()
            raise
        return cls(config, tower, connector)

    @property
    def num_bytes(self) -> int:
        """That it takes."""
        return self.tower.num_bytes + self.connector.num_bytes

    def crops(self, pixels: bytes) -> NDArray[np.uint8]:
        """The crops [., side, side, 3] of an image; raises FieldError where they are none."""
        config = self.config
        if not pixels or len(pixels) % config.crop_bytes:
            raise FieldError("images", f"must have crops of {config.crop_bytes} bytes each, not {len(pixels)} in all")
        return np.frombuffer(pixels, dtype=np.uint8).reshape(-1, config.side, config.side, CHANNELS)

    def encode(self, crop: NDArray[np.uint8]) -> Rows:
        """The rows [rows, output_size] of one crop [side, side, 3]; raises ValueError where they are not finite."""
        config = self.config
        patches = self._patches(crop)
        hidden = self.tower.run(len(patches), config.positions, [patches])[0]
        joined = hidden.reshape(config.rows, -1)
        rows: Rows = self.connector.run(config.rows, None, [joined])[0]
        if not np.isfinite(rows).all():
            raise ValueError(FAULTS[Fault.NOT_FINITE])
        return rows

    def close(self) -> None:
        """Free the device's memory."""
        self.tower.close()
        self.connector.close()

    def _patches(self, crop: NDArray[np.uint8]) -> Rows:
        """[patches², patch_size] normalised, in the order of the configuration, each channel after channel."""
        config = self.config
        size, side = config.patch, config.patches
        values = crop[: side * size, : side * size].astype(np.float32) * np.float32(config.factor)
        values = (values - np.array(config.mean, dtype=np.float32)) / np.array(config.deviation, dtype=np.float32)
        grid = values.reshape(side, size, side, size, CHANNELS).transpose(0, 2, 4, 1, 3)
        return np.ascontiguousarray(grid.reshape(side * side, -1)[config.order])
