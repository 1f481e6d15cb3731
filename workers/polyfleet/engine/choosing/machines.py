"""The device that an operator's options mean, opened."""

from polyfleet.backends import BackendRegistry, KernelCapabilities
from polyfleet.backends.cpu import usable_cores
from polyfleet.engine.choosing.sizing import Machine
from polyfleet.wire.limits import FieldError


def open_machine(device: str, ranks: int = 1) -> tuple[Machine, KernelCapabilities]:
    """Select a device by `auto`, its accelerator's name, or both that and an index: `cuda:1`.

    Of a group of ranks it is the first one's, and what each has. Raises BackendUnavailable with the reason, FieldError
    for an index that is none, and for more ranks than there are devices or, where they share one, cores.
    """
    accelerator, _, index = device.partition(":")
    backend = BackendRegistry.get(accelerator)
    devices = {str(each.index): each for each in backend.devices()}
    if (index or "0") not in devices:
        raise FieldError("device", f"must have an index among {', '.join(devices)}, not {device}")
    found = devices[index or "0"]
    capabilities = backend.capabilities(found)
    shared, cores = (ranks if capabilities.divisible else 1), usable_cores()
    most = cores if capabilities.divisible else sum(each.index >= found.index for each in devices.values())
    if ranks > most:
        what = "cores" if capabilities.divisible else f"devices from {accelerator}:{found.index} on"
        raise FieldError("tensor_parallel", f"must be at most {most}, the number of {what}, not {ranks}")
    name = backend.activate(found.index)
    free = backend.memory(found.index).free_bytes // shared
    machine = Machine(
        *(name, capabilities.dtypes, capabilities.preferred_dtype, free, max(1, cores // shared)),
        block_sizes=capabilities.block_sizes,
        unified_memory=capabilities.unified_memory,
    )
    return machine, capabilities
