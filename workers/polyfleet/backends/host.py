"""The machine as backends see it: files below a root and vendor tools run with a time limit. Tests describe one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TOOL_TIMEOUT_SECONDS = 5.0
PROBED_CLASSES = ("0x02", "0x03", "0x0b", "0x12")  # network (some NPUs), display, processor, accelerator


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a vendor tool printed. `problem` is empty when it ran to its end, whatever its exit status."""

    output: str = ""
    exit_status: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function as sysfs shows it; ids are lower-case hexadecimal with 0x."""

    address: str
    vendor: str
    device: str
    pci_class: str


def run_tool(command: Sequence[str], timeout: float = TOOL_TIMEOUT_SECONDS) -> ToolResult:
    """Run a tool in the C locale, in its own process group that is killed when time is up. Never raises."""
    executable = shutil.which(command[0])
    if executable is None:
        return ToolResult(problem=f"{command[0]} is not installed")
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C"}
    try:
        child = subprocess.Popen(
            [executable, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    except OSError as error:
        return ToolResult(problem=f"{command[0]} could not be started: {error.strerror}")
    try:
        output, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_group(child)
        return ToolResult(problem=f"{command[0]} did not answer within {timeout:g} s")
    if child.returncode < 0:
        return ToolResult(problem=f"{command[0]} was killed by signal {-child.returncode}")
    return ToolResult(output.decode("utf-8", errors="replace"), child.returncode)


def _kill_group(child: "subprocess.Popen[bytes]") -> None:
    import signal

    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=1)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass  # a tool stuck in the driver can't be reaped; it is left to the kernel


@dataclass(frozen=True, slots=True)
class Host:
    """Where backends look: `root` stands for /, `run` runs tools, `platform` is as sys.platform, `environ` as os's."""

    root: Path = Path("/")
    run: Callable[[Sequence[str], float], ToolResult] = run_tool
    platform: str = sys.platform
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def read(self, path: str) -> str:
        """A small text file below the root, stripped; empty when it can't be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def exists(self, pattern: str) -> bool:
        """Whether any path below the root matches the glob."""
        return next(self.root.glob(pattern), None) is not None

    def pci_devices(self, vendor: str) -> tuple[PciDevice, ...]:
        """The vendor's functions of an accelerator's class, in bus order (`vendor` as 0x10de)."""
        found = []
        for path in sorted((self.root / "sys/bus/pci/devices").glob("*")):
            relative = f"sys/bus/pci/devices/{path.name}"
            each = PciDevice(
                path.name, *(self.read(f"{relative}/{name}").lower() for name in ("vendor", "device", "class"))
            )
            if each.vendor == vendor and each.pci_class.startswith(PROBED_CLASSES):
                found.append(each)
        return tuple(found)
