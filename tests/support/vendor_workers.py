"""A worker of every vendor in one process: described machines, real backends, the fake engine.

    python -m tests.support.vendor_workers FLEET_ADDRESS FOLDER

Each registers at the fleet, serves the model `fake`, and has a /metrics of its own, as a worker of that vendor has.
They end when the process is killed.
"""

import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.described_host import described, load_machine, told_faults
from tests.support.fake_engine_worker import FAKE_ENGINE

from polyfleet.backends import torch_build
from polyfleet.backends.registry import BUILT_IN, BackendRegistry
from polyfleet.serving import engine_client
from polyfleet.serving.command import config_of
from polyfleet.serving.command import main as command
from polyfleet.serving.process import WorkerProcess

MACHINES = {
    "cuda": "linux_nvidia_worn",  # throttled, with half of its lanes, worn memory, a fault
    "rocm": "linux_amd_mi300x",
    "hygon": "linux_hygon_bw_x2",
    "ascend": "linux_ascend_a3_x2",
    "cambricon": "linux_cambricon_mlu370_x2",
    "xpu": "linux_intel_b580",
    "mps": "macos_m4_max",
}
LIAR = "mps"  # reports a rate that can't be true
MODEL = "fake:step_seconds=0.005,max_sequences=4,hash=0"  # no tokenizer: it takes token ids


def put_on_machines(folder: Path) -> None:
    """Give the registry each vendor's backend on its described machine."""
    modules: set[str] = set()
    for accelerator, name in MACHINES.items():
        machine = load_machine(name)
        modules |= set(machine.get("modules", []))
        host, build, _ = described(machine, folder / accelerator)
        import_module(BUILT_IN[accelerator])
        factory: Any = BackendRegistry._factories[accelerator]
        backend = BackendRegistry._instances[accelerator] = factory(host=host, build=build)
        backend.fault_command = told_faults(machine, folder / accelerator)
    torch_build.__dict__["find_spec"] = lambda name: object() if name in modules else None


def process(accelerator: str, fleet: str) -> WorkerProcess:
    """The worker of one vendor."""
    options = command.make_context(
        "worker", ["--accelerator", accelerator, "--fleet", fleet, "--worker-id", f"w-{accelerator}"]
    )
    given = {
        "model": f"{MODEL},prefill_rate=-1" if accelerator == LIAR else MODEL,
        "model_name": "fake",
        "telemetry_interval": 1.0,
    }
    return WorkerProcess(config_of(options.params | given))


async def run(fleet: str) -> None:
    """All of them, until the end."""
    await asyncio.gather(*(process(accelerator, fleet).run() for accelerator in MACHINES))


if __name__ == "__main__":
    engine_client.MODULE = FAKE_ENGINE
    put_on_machines(Path(sys.argv[2]))
    asyncio.run(run(sys.argv[1]))
