"""Ready-made engine options by purpose and by site, made to fit the device found. Pure.

A template wishes; `configure` cuts the wish to what the device can hold and computes in. The keys of the result are
`backend` and fields of `EngineOptions`, so that it can be spread into either.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyfleet.backends.protocol import BackendType, DeviceInfo, KernelCapabilities, accelerator_name
from polyfleet.tuning.device_defaults import defaults_of, usual_block_size

GIB = 2**30
BYTES_PER_SEQUENCE = GIB // 4  # of device memory, below which one more sequence of a small model has no room
TYPICAL_TOKEN_BYTES = 128 * 1024  # of KV in 16 bit: a model of 8 billion weights with grouped queries


@dataclass(frozen=True, slots=True)
class Template:
    """A wish. 0 and "auto" leave the choice to the engine."""

    name: str
    description: str
    max_sequences: int
    step_tokens: int
    tokens_per_sequence: int  # of KV pool
    dtype: str = "auto"
    executor: str = "auto"
    prefix_cache: bool = True
    cores_share: float = 1.0  # of a CPU's cores
    accelerators: tuple[str, ...] = ()  # empty: every accelerator


PURPOSES = (
    Template("inference", "a balance of latency and throughput", 32, 2048, 2048),
    Template("throughput", "as many tokens a second as the device gives; single requests wait longer", 256, 8192, 1024),
    Template("latency", "few requests at once, each answered as soon as can be", 4, 256, 4096),
    Template("memory-constrained", "the smallest footprint that still batches", 2, 128, 1024),
    Template(
        "development",
        "reference kernels in float32, quick to start and easy to debug",
        2,
        256,
        1024,
        "float32",
        "eager",
    ),
)
SITES = {
    "datacentre": ("a card for this service alone", 256, 8192, 2048, 1.0),
    "workstation": ("a machine that someone also works at", 32, 1024, 2048, 0.75),
    "edge": ("a small device that does other things too", 4, 256, 1024, 0.5),
}
ACCELERATORS = tuple(each.value for each in BackendType if not each.experimental)


def _site_templates() -> dict[str, Template]:
    found = {}
    for site, (description, sequences, step_tokens, tokens, cores) in SITES.items():
        for accelerator in ACCELERATORS:
            if site == "datacentre" and BackendType(accelerator).personal:
                continue
            name = f"{site}-{accelerator}"
            found[name] = Template(
                name,
                f"{accelerator}: {description}",
                sequences,
                step_tokens,
                tokens,
                cores_share=cores,
                accelerators=(accelerator,),
            )
    return found


TEMPLATES: Mapping[str, Template] = {each.name: each for each in PURPOSES} | _site_templates()


def configure(
    template: Template, backend: BackendType | str, device: DeviceInfo, capabilities: KernelCapabilities
) -> dict[str, Any]:
    """The template's wish cut to the device. Raises ValueError when the template is for another accelerator."""
    accelerator = accelerator_name(backend)
    if template.accelerators and accelerator not in template.accelerators:
        raise ValueError(f"template {template.name} is for {', '.join(template.accelerators)}, not for {accelerator}")
    host, cores = backend == BackendType.CPU, device.cores or 1
    defaults = defaults_of(host=host, unified_memory=capabilities.unified_memory, cores=cores)
    memory = device.total_memory_bytes
    sequences, step_tokens = template.max_sequences, template.step_tokens
    pool_tokens = sequences * template.tokens_per_sequence
    if memory:
        sequences = max(1, min(sequences, memory // BYTES_PER_SEQUENCE))
        most = int(memory * defaults.pool_share) // TYPICAL_TOKEN_BYTES
        pool_tokens = min(sequences * template.tokens_per_sequence, most)
    if host:  # a CPU's step must stay short: prompts would hold up decodes
        step_tokens = min(step_tokens, defaults.step_tokens)
        sequences = min(sequences, defaults.max_sequences, step_tokens // 2)
    block_size = usual_block_size(capabilities.block_sizes)
    threads = max(1, round(cores * template.cores_share)) if host else 0
    return {
        "backend": accelerator,
        "dtype": template.dtype if template.dtype in capabilities.dtypes else "auto",
        "max_sequences": sequences,
        "step_tokens": max(step_tokens, sequences + 1),
        "kv_cache_tokens": -(-max(pool_tokens, block_size) // block_size) * block_size,
        "block_size": block_size,
        "prefix_cache": template.prefix_cache,
        "executor": template.executor if template.executor in capabilities.executors else "auto",
        "threads": threads,
    }
