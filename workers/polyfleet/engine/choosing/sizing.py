"""Sizing: every option that was left open, chosen from the device and the model in one pure function."""

import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from polyfleet.engine.batching.holdings import held_tokens, local_blocks
from polyfleet.engine.executor import Capacity, Executor, Footprint
from polyfleet.engine.speculation.speculation import drafts_of
from polyfleet.models.config import ModelConfig
from polyfleet.tuning.device_defaults import ACCELERATOR, Defaults, defaults_of, usual_block_size
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

log = logging.getLogger(__name__)

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
TOKENS_PER_SEQUENCE = 256  # of pool, below which running one more sequence would only preempt another
MOST_BLOCKS = 2**20  # where the choice is ours: the host keeps books of each, however little it takes on the device
STATE_SHARE = 0.25  # of what is free, for recurrent states where their number is ours to choose
SPARE_BYTES = 2**30  # of an accelerator, for activations, at least


@dataclass(frozen=True, slots=True)
class Machine:
    """What sizing knows of the device and of the memory that model and KV pool share."""

    device: str  # torch's name
    dtypes: frozenset[str]
    preferred_dtype: str
    free_bytes: int
    cores: int
    block_sizes: tuple[int, ...] = ()  # KV blocks that its kernels accept; empty: any
    unified_memory: bool = False  # whether the memory is the host's

    @property
    def defaults(self) -> Defaults:
        """What fits such a device."""
        return defaults_of(host=self.device == "cpu", unified_memory=self.unified_memory, cores=self.cores)


def resolve(options: EngineOptions, config: ModelConfig, footprint: Footprint, machine: Machine) -> EngineOptions:
    """The same options with no 0 and no "auto" left but `executor`. Raises FieldError for what can't be had.

    `footprint` is what the executor takes that is to run the model: its estimate, or what it measured.
    """
    defaults = machine.defaults
    dtype = computing_dtype(options, machine)
    options = replace(options, block_size=_block_size(options, machine))
    if footprint.state_per_sequence:
        options, footprint = _with_states(options, machine, defaults, footprint)
    tokens = _pool_tokens(options, config, machine, defaults, footprint)
    capacity = tokens // options.block_size * options.block_size
    # A sequence that one step must have room for:
    whole = 0 if config.causal else _context_length(options, config, capacity, 0)
    wanted = _wanted_sequences(options, capacity // options.block_size)
    step_tokens = options.step_tokens or max(defaults.step_tokens, 2 * wanted, whole)
    room = capacity // max(TOKENS_PER_SEQUENCE, options.block_size)
    max_sequences = wanted or max(1, min(defaults.max_sequences, step_tokens // 2, room))
    if step_tokens <= max_sequences:
        raise FieldError("step_tokens", f"must be over max_sequences ({max_sequences}), not {step_tokens}")
    if step_tokens < whole:
        raise FieldError("step_tokens", f"must be at least the context, {whole}: texts are not cut")
    return replace(
        options,
        device=machine.device,
        dtype=dtype,
        context_length=_context_length(options, config, capacity, step_tokens),
        kv_cache_tokens=capacity,
        max_sequences=max_sequences,
        step_tokens=step_tokens,
        step_seconds=options.step_seconds or defaults.step_seconds,
        threads=_threads(options, machine),
    )


def capacity_of(options: EngineOptions, window: int = 0) -> Capacity:
    """What an executor must have room for; `options` have nothing left open.

    `window`: of caches that are to have a pool of their own; 0: none are.
    """
    block_size = options.block_size
    num_blocks, sizes = options.kv_cache_tokens // block_size, (options.max_sequences, options.step_tokens, block_size)
    return Capacity(
        num_blocks=num_blocks,
        local_blocks=local_blocks(num_blocks, window, *sizes) if window else 0,
        block_size=block_size,
        max_sequences=options.max_sequences,
        max_blocks=-(-options.context_length // block_size),
        step_tokens=options.step_tokens,
        drafts=drafts_of(options),
    )


def window_of(executor: Executor, config: ModelConfig) -> int:
    """Of caches that are to have a pool of their own; 0 where none are, or the executor knows one pool alone."""
    return config.local_window if getattr(executor, "separates_windows", False) else 0


def computing_dtype(options: EngineOptions, machine: Machine) -> str:
    """The dtype that is computed in; raises FieldError for one that the device can't compute in."""
    if options.dtype == "auto":
        return machine.preferred_dtype
    possible = sorted(machine.dtypes & DTYPE_BYTES.keys())
    if options.dtype not in possible:
        raise FieldError("dtype", f"must be auto, {' or '.join(possible)} on {machine.device}, not {options.dtype}")
    return options.dtype


def _block_size(options: EngineOptions, machine: Machine) -> int:
    possible = machine.block_sizes
    if not options.block_size:
        return usual_block_size(possible)
    if possible and options.block_size not in possible:
        names = " or ".join(map(str, possible))
        raise FieldError("block_size", f"must be {names} on {machine.device}, not {options.block_size}")
    return options.block_size


def _pool_tokens(
    options: EngineOptions, config: ModelConfig, machine: Machine, defaults: Defaults, footprint: Footprint
) -> int:
    block_size, cost = options.block_size, _pool_cost(options, config, defaults, footprint)
    free = max(0, machine.free_bytes - footprint.weights)
    if options.kv_cache_tokens:
        tokens = -(-options.kv_cache_tokens // block_size) * block_size
        if (taken := cost(tokens // block_size)) > free:
            problem = f"{tokens} tokens take {taken / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
            raise FieldError("kv_cache_tokens", f"{problem} beside the model on {machine.device}")
        return tokens
    most = _pool_bytes(machine, defaults, free, footprint)
    tokens = bisect_right(range(1, MOST_BLOCKS + 1), most, key=cost) * block_size
    if defaults.pool_contexts:
        context = options.context_length or config.context_length
        step_tokens = options.step_tokens or max(defaults.step_tokens, 2 * options.max_sequences)
        context = held_tokens(context, config.horizon, 2 * step_tokens, block_size)
        whole_contexts = min(defaults.pool_contexts, options.max_sequences or defaults.pool_contexts)
        tokens = min(tokens, -(-context // block_size) * block_size * whole_contexts)
    if tokens < block_size:
        raise FieldError("kv_cache_tokens", f"no memory is left on {machine.device} for a KV pool beside the model")
    return tokens


def _pool_cost(
    options: EngineOptions, config: ModelConfig, defaults: Defaults, footprint: Footprint
) -> Callable[[int], int]:
    """The bytes of so many blocks, with those for windows that go with them, as `resolve` and `capacity_of` do."""
    block_size, step_tokens = options.block_size, options.step_tokens
    step_tokens = step_tokens or max(defaults.step_tokens, 2 * options.max_sequences)
    local = footprint.local_per_token if config.local_window else 0

    def cost(num_blocks: int) -> int:
        room = num_blocks * block_size // max(TOKENS_PER_SEQUENCE, block_size)
        sequences = options.max_sequences or max(1, min(defaults.max_sequences, step_tokens // 2, room))
        of_windows = local_blocks(num_blocks, config.local_window, sequences, step_tokens, block_size) if local else 0
        return (num_blocks * (footprint.kv_per_token - local) + of_windows * local) * block_size

    return cost


def _pool_bytes(machine: Machine, defaults: Defaults, free: int, footprint: Footprint) -> int:
    """What the KV pool may take at most."""
    if defaults != ACCELERATOR:
        return int(free * defaults.memory_share)
    total = machine.free_bytes
    return min(int(total * defaults.memory_share), total - max(SPARE_BYTES, footprint.workspace)) - footprint.weights


def _with_states(
    options: EngineOptions, machine: Machine, defaults: Defaults, footprint: Footprint
) -> tuple[EngineOptions, Footprint]:
    """A sequence keeps its state whatever it has in the KV pool; a cached prefix would have none, so there are none."""
    each, free = footprint.state_per_sequence, max(0, machine.free_bytes - footprint.weights)
    count = options.max_sequences or max(1, min(defaults.max_sequences, int(free * STATE_SHARE) // each))
    if count * each > free:
        problem = f"the states of {count} take {count * each / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        raise FieldError("max_sequences", f"{problem} beside the model on {machine.device}")
    options = replace(options, max_sequences=count, prefix_cache=False)
    return options, replace(footprint, weights=footprint.weights + count * each)


def _context_length(options: EngineOptions, config: ModelConfig, capacity: int, step_tokens: int) -> int:
    if capacity >= held_tokens(config.context_length, config.horizon, step_tokens, options.block_size):
        capacity = max(capacity, config.context_length)  # of which a sequence holds no more at once
    if not options.context_length:
        return min(config.context_length, capacity)
    length = options.context_length
    if length > config.context_length:
        raise FieldError("context_length", f"must be at most the model's {config.context_length}, not {length}")
    if length > capacity:
        raise FieldError("context_length", f"must fit the KV pool of {capacity} tokens, not {length}")
    return length


def _wanted_sequences(options: EngineOptions, num_blocks: int) -> int:
    """As many as asked for, 0 for none; never more than there are KV blocks, of which each takes one at least."""
    if options.max_sequences > num_blocks:
        asked = f"{options.max_sequences} sequences at once were asked for"
        log.warning("%s, the KV pool has %d blocks: so many run", asked, num_blocks)
    return min(options.max_sequences, num_blocks)


def _threads(options: EngineOptions, machine: Machine) -> int:
    """As many as asked for, or one for each usable core; never more than there are cores."""
    if options.threads > machine.cores:
        log.warning("%d threads were asked for, %d cores may be used: taking %d", options.threads, *[machine.cores] * 2)
    return min(options.threads or machine.cores, machine.cores)
