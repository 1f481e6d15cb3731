"""The machine as backends see it: files below a root and vendor tools run with a time limit. Tests describe one."""

import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TOOL_TIMEOUT_SECONDS = 5.0
TOOL_OUTPUT_BYTES = 4 * 2**20  # some hundred times the longest table: what prints more than this prints without end
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
    """Run a tool in the C locale, in its own process group that is killed when it takes or prints too much.

    Never raises.
    """
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
        output = _read_output(child, timeout)
    except subprocess.TimeoutExpired:
        _kill_group(child)
        return ToolResult(problem=f"{command[0]} did not answer within {timeout:g} s")
    if len(output) > TOOL_OUTPUT_BYTES:
        _kill_group(child)
        return ToolResult(problem=f"{command[0]} printed more than {TOOL_OUTPUT_BYTES >> 20} MiB")
    if child.returncode < 0:
        return ToolResult(problem=f"{command[0]} was killed by signal {-child.returncode}")
    return ToolResult(output.decode("utf-8", errors="replace"), child.returncode)


def _read_output(child: "subprocess.Popen[bytes]", timeout: float) -> bytes:
    """All that the tool prints, or a little more than it may, and then without its end. Raises TimeoutExpired."""
    deadline = time.monotonic() + timeout
    output = bytearray()
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector, child.stdout as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        while len(output) <= TOOL_OUTPUT_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise subprocess.TimeoutExpired(child.args, timeout)
            piece = os.read(pipe.fileno(), 65536)
            if not piece:
                child.wait(max(0.0, deadline - time.monotonic()))
                break
            output += piece
    return bytes(output)


def _kill_group(child: "subprocess.Popen[bytes]") -> None:
    import signal

    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=1)
    except (OSError, subprocess.TimeoutExpired):
        pass  # gone already, or another user's (setuid), or stuck in the driver: it is left to the kernel


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
