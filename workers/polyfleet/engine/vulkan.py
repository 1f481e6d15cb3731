"""VulkanExecutor: experimental; the whole step on a Vulkan device in float32, only tokens come back to the host.

Greedy tokens are found on the device. Draws, penalties and logprobs need the logits, which are then read back and
given to the sampler that every executor shares.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from polyfleet.engine.batch import PoolingKind, SliceResult, StepBatch
from polyfleet.graph.lowering import fuse
from polyfleet.kernels.vulkan.device import VulkanDevice
from polyfleet.kernels.vulkan.program import StepInputs, VulkanProgram
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.sampling.draw import Draw, SampledToken
from polyfleet.sampling.host import sample

NOT_FINITE = 0xFFFFFFFF
NOT_FINITE_MESSAGE = "the model computed logits that are not finite"


class VulkanExecutor:
    """Runs a KernelGraph through WGSL shaders; see `polyfleet.engine.batch.Executor`."""

    def __init__(self, model: LoadedModel, *, num_blocks: int, block_size: int = 16) -> None:
        """Opens the device and uploads the model; raises VulkanError with one sentence."""
        self.block_size, self.num_blocks = block_size, num_blocks
        self._device = VulkanDevice.open()
        self._graph = fuse(record(model.config, model.weights))
        self._program = VulkanProgram(self._device, self._graph, model.weights, num_blocks, block_size)

    def step(self, batch: StepBatch) -> tuple[SliceResult, ...]:
        """Compute one step."""
        inputs = step_inputs(batch, self.block_size)
        self._program.run(inputs)
        tokens = self._tokens([each.draw for each in batch.slices if each.draw is not None])
        pooled = self._pooled(batch, len(inputs.ids))
        results, drawn = [], iter(tokens)
        for index, each in enumerate(batch.slices):
            token = next(drawn) if each.draw is not None else None
            error = NOT_FINITE_MESSAGE if each.draw is not None and token is None else ""
            results.append(SliceResult(token, pooled.get(index, ()), error))
        return tuple(results)

    def implementations(self) -> Mapping[str, str]:
        """Every op is a shader."""
        return {op.kind.value: f"vulkan ({self._device.name})" for op in self._graph.ops}

    def _tokens(self, draws: list[Draw]) -> list[SampledToken | None]:
        if not draws:
            return []
        if all(draw.params.greedy and not draw.params.penalised and draw.num_logprobs is None for draw in draws):
            best = self._program.read_best(len(draws))
            return [None if token == NOT_FINITE else SampledToken(token) for token in best]
        return sample(self._program.read_floats(self._graph.logits, len(draws)), draws)

    def _pooled(self, batch: StepBatch, rows: int) -> dict[int, tuple[float, ...]]:
        if all(each.pooling is None for each in batch.slices):
            return {}
        hidden, pooled, first = self._program.read_floats(self._graph.hidden, rows), {}, 0
        for index, each in enumerate(batch.slices):
            own = hidden[first : first + len(each.token_ids)]
            first += len(each.token_ids)
            if each.pooling is not None:
                pooled[index] = tuple((own.sum(0) if each.pooling is PoolingKind.MEAN else own[-1]).tolist())
        return pooled


def step_inputs(batch: StepBatch, block_size: int) -> StepInputs:
    """Flatten a batch: each row's id, position, slot and sequence, and the rows whose logits are wanted."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sequences: list[int] = []
    selected: list[int] = []
    width = max((len(each.block_table) for each in batch.slices), default=1) or 1
    tables = np.zeros((max(1, len(batch.slices)), width), dtype=np.uint32)
    for index, each in enumerate(batch.slices):
        tables[index, : len(each.block_table)] = each.block_table
        ids.extend(each.token_ids)
        for position in range(each.start, each.start + len(each.token_ids)):
            positions.append(position)
            slots.append(each.block_table[position // block_size] * block_size + position % block_size)
            sequences.append(index)
        if each.draw is not None:
            selected.append(len(ids) - 1)
    as_array = partial(np.asarray, dtype=np.uint32)
    return StepInputs(
        as_array(ids), as_array(positions), as_array(slots), as_array(sequences), tables, as_array(selected)
    )
