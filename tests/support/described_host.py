"""A Host from a described machine: a JSON file names its PCI functions, files, tools and torch build.

{"pci": [["0000:03:00.0", "0x10de", "0x2330", "0x030200"]], "files": {"dev/kfd": ""},
 "tools": {"npu-smi info": {"sample": "npu-smi_info_a3.txt"}, "cnmon": {"hang": true}},
 "torch": {"version": "2.11.0", "cuda": "12.8"}, "platform": "linux", "modules": ["torch_npu"],
 "faults": [{"pci_bus_id": "0000:03:00.0", "code": "XID 63"}]}
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfleet.backends.host import Host, ToolResult
from polyfleet.backends.torch_build import TorchBuild

DATA = Path(__file__).parent.parent / "data"
MIG_LIST = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000001)
  MIG 1g.10gb     Device  0: (UUID: MIG-3b7c2a1e-0000-0000-0000-000000000000)
  MIG 3g.40gb     Device  1: (UUID: MIG-4b7c2a1e-0000-0000-0000-000000000000)
"""


@dataclass
class DescribedTools:
    """Answers as the description says; every call is kept, and an undescribed tool is not installed."""

    tools: dict[str, dict[str, Any]]
    calls: list[str] = field(default_factory=list)

    def __call__(self, command: Sequence[str], timeout: float) -> ToolResult:
        line = " ".join(command)
        if "polyfleet.backends.library_probe" in command:
            line = f"library {command[-1]}"
        self.calls.append(line)
        described = self.tools.get(line) or next(
            (self.tools[name] for name in self.tools if name.endswith("*") and line.startswith(name[:-1])), None
        )
        if described is None:
            if line.startswith("library "):
                return ToolResult(json.dumps({"absent": f"{command[-1]} can't be loaded"}))
            return ToolResult(problem=f"{command[0]} is not installed")
        if described.get("hang"):
            return ToolResult(problem=f"{command[0]} did not answer within {timeout:g} s")
        if "sample" in described:
            return ToolResult((DATA / "tools" / described["sample"]).read_text(), described.get("exit_status", 0))
        return ToolResult(described.get("output", ""), described.get("exit_status", 0))


def described(machine: dict[str, Any], root: Path) -> tuple[Host, TorchBuild, DescribedTools]:
    """Lay the machine's files below `root` and return what backends are made with."""
    for address, vendor, device, pci_class in machine.get("pci", []):
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, value in (("vendor", vendor), ("device", device), ("class", pci_class)):
            (folder / name).write_text(value + "\n")
    for path, text in machine.get("files", {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        sample = DATA / "tools" / text.removeprefix("sample:")
        (root / path).write_text(sample.read_text() if text.startswith("sample:") else text)
    tools = DescribedTools(machine.get("tools", {}))
    host = Host(root=root, run=tools, platform=machine.get("platform", "linux"), environ=machine.get("environ", {}))
    return host, TorchBuild(**machine.get("torch", {})), tools


def told_faults(machine: dict[str, Any], root: Path) -> tuple[str, ...]:
    """A backend's `fault_command` that tells of the machine's faults, kept below `root`, and ends; none: empty."""
    if not (faults := machine.get("faults")):
        return ()
    path = root / "faults"
    path.write_text("".join(json.dumps(each) + "\n" for each in faults))
    return ("cat", str(path))


def load_machine(name: str) -> dict[str, Any]:
    """A description of tests/data/machines."""
    loaded: dict[str, Any] = json.loads((DATA / "machines" / f"{name}.json").read_text())
    return loaded
