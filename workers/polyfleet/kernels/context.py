"""What implementations are bound to: the model's weights in the executor's dtype, and the KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyfleet.kernels.adapters import AdapterTables
from polyfleet.kernels.ranks import Ranks
from polyfleet.kernels.weights.packed import Packed, kept, pack_weights
from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weight, Weights

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}  # of computation, by name


@dataclass(frozen=True, slots=True)
class KernelContext:
    """Fixed for the life of an executor. Each of the graph's caches is [2, num_blocks, kv heads, block_size, width]."""

    weights: Weights
    device: torch.device
    dtype: torch.dtype
    caches: Sequence[Tensor]  # keys before values
    block_size: int  # tokens a block
    states: Sequence[Tensor] = ()  # of each of the graph's [slots, width] float32
    prepared: dict[tuple[str | float, ...], Tensor] = field(default_factory=dict)
    ranks: Ranks | None = None  # this one's end of its group, where it is one of several
    weights_as: str = ""  # "", as dense ones, or how matrices stay in memory: see `packed.kept`
    packed: dict[tuple[str, ...], Packed] = field(default_factory=dict)
    adapters: AdapterTables | None = None  # where there are some
    local: frozenset[int] = frozenset()  # caches in a pool of their own, where a step has two
    looks: bool = False  # whether weights are summed up on their way, as the host has not looked at their numbers
    sums: dict[str, Tensor] = field(default_factory=dict)  # of those so far, by name: see `finite`

    @property
    def keys(self) -> tuple[Tensor, ...]:
        """Of each cache [num_blocks, kv heads, block_size, width], contiguous."""
        return tuple(cache[0] for cache in self.caches)

    @property
    def values(self) -> tuple[Tensor, ...]:
        """As `keys`; of latent caches the same."""
        return tuple(cache[-1] for cache in self.caches)

    def dense(self, *names: str) -> Tensor:
        """The weights dequantised and stacked along rows: [Σ rows, columns] in the context's dtype, made once."""
        if names not in self.prepared:
            parts = [self._read(self.weights[name], self.dtype, self.device) for name in names]
            self.prepared[names] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.prepared[names]

    def matrix(self, *names: str) -> Tensor | Packed:
        """The weights stacked along rows for products, packed where they stay quantised, else `dense`; made once."""
        if names not in self.packed:
            weights = [self.weights[name] for name in names]
            kind = kept(weights, self.weights_as)
            if kind is None:
                return self.dense(*names)
            self.packed[names] = pack_weights(kind, weights, self.device, self._read)
        return self.packed[names]

    def vector(self, *names: str) -> Tensor:
        """One-row weights side by side as a vector."""
        return torch.cat([self.dense(name).flatten() for name in names])

    def wide(self, *names: str) -> Tensor:
        """One-row weights side by side as a vector in float32, whatever the context's dtype."""
        key = ("float32", *names)
        if key not in self.prepared:
            parts = [self._read(self.weights[name], torch.float32, self.device).flatten() for name in names]
            self.prepared[key] = torch.cat(parts)
        return self.prepared[key]

    def gain(self, name: str, *, wide: bool) -> Tensor:
        """A norm's weight: in float32 where its products are rounded once."""
        return self.wide(name) if wide else self.vector(name)

    def _read(self, weight: Weight, dtype: torch.dtype, device: torch.device) -> Tensor:
        """`dequantise`, and a look at the numbers of weights that are dense."""
        numbers = dequantise(weight, dtype, device)
        if self.looks and not weight.format.quantised:
            self.sums[weight.name] = numbers.sum(dtype=torch.float32)
        return numbers

    def finite(self) -> frozenset[str]:
        """The weights whose numbers the device has found to be finite; waits for it, and forgets the sums."""
        if not self.sums:
            return frozenset()
        found = torch.stack(list(self.sums.values())).isfinite().tolist()
        names = frozenset(name for name, finite in zip(self.sums, found, strict=True) if finite)
        self.sums.clear()
        return names

    def constants(self, values: tuple[float, ...]) -> Tensor:
        """The values in float32, moved to the device once."""
        if values not in self.prepared:
            self.prepared[values] = torch.tensor(values, dtype=torch.float32, device=self.device)
        return self.prepared[values]
