"""All-reduce between two devices of one accelerator, a process each."""

import subprocess
import sys
from datetime import timedelta

from polyfleet.backends.protocol import accelerator_name
from polyfleet.conformance.checks import Failed, Skipped, Subject, need_torch
from polyfleet.process.listening import free_address
from polyfleet.wire.auth import split_host_port

SECONDS = 90.0


def collectives(subject: Subject) -> str:
    """The sum over two ranks is right on both. A CPU counts as two devices: its processes talk through Gloo."""
    need_torch(subject)
    state = subject.backend.communication().available()
    if not state.available:
        raise Skipped(state.reason)
    if subject.device != "cpu" and len(subject.backend.devices()) < 2:
        raise Skipped("there is one device only")
    port = split_host_port(free_address())[1]
    name = accelerator_name(subject.backend.type)
    command = [sys.executable, "-m", "polyfleet.conformance.collectives", name, port]
    ranks = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        messages = [each.communicate(timeout=SECONDS)[1] for each in ranks]
    except subprocess.TimeoutExpired as error:
        raise Failed(f"two ranks did not finish an all-reduce within {SECONDS:g} s") from error
    finally:
        for each in ranks:
            each.kill()
    if any(each.returncode for each in ranks):
        last = next((text.strip().splitlines()[-1] for text in messages if text.strip()), "no message")
        raise Failed(f"an all-reduce of two ranks failed: {last}")
    return f"all-reduce of two ranks through {subject.backend.communication().library}"


def run_rank(backend_name: str, port: int, rank: int) -> None:
    """In a rank's process: raises AssertionError when the sum is wrong."""
    import torch
    import torch.distributed as dist

    from polyfleet.backends.registry import BackendRegistry

    backend = BackendRegistry.get(backend_name)
    device = backend.activate(0 if backend_name == "cpu" else rank)
    dist.init_process_group(
        backend.communication().name,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    values = torch.full((1024,), float(rank + 1), device=device)
    dist.all_reduce(values)
    backend.synchronize()
    assert bool((values == 3.0).all()), "the sum of 1 and 2 is not 3"
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
