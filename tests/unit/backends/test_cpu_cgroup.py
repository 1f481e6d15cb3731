"""What cgroups allow of CPU time and memory: as files below a root describe it, and as this system enforces it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyfleet.backends.cgroup import cpu_quota
from polyfleet.backends.cpu import CpuBackend, usable_cores
from polyfleet.backends.protocol import MemoryInfo

V1 = Path("/sys/fs/cgroup/cpu")
V1_MEMORY = Path("/sys/fs/cgroup/memory")
KIB = 1024


def describe(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"}, 0.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n",
            },
            0.5,
        ),
        ({"proc/self/cgroup": "0::/of/the/host\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"sys/fs/cgroup/cpu.max": "what\n", "proc/self/cgroup": "nonsense\n"}, None),
    ],
)
def test_the_least_quota_counts(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(describe(tmp_path, files)) == quota


def test_cores_are_at_least_one_and_a_part_of_one_counts(tmp_path: Path) -> None:
    assert usable_cores(describe(tmp_path, {"sys/fs/cgroup/cpu.max": "1000 100000\n"})) == 1


@pytest.mark.parametrize(
    ("files", "free", "total"),
    [
        ({}, 800, 1000),
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5000\n"}, 800, 1000),
        ({"sys/fs/cgroup/memory.max": f"{500 * KIB}\n", "sys/fs/cgroup/memory.current": f"{100 * KIB}\n"}, 400, 500),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": f"{600 * KIB}\n",
                "sys/fs/cgroup/a/memory.current": f"{590 * KIB}\n",
                "sys/fs/cgroup/a/b/memory.max": f"{300 * KIB}\n",
                "sys/fs/cgroup/a/b/memory.current": f"{90 * KIB}\n",
            },
            10,  # the group above is nearly full
            300,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{700 * KIB}\n",
                "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": f"{500 * KIB}\n",
                "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes": f"{450 * KIB}\n",
                "sys/fs/cgroup/memory/docker/x/memory.stat": f"inactive_file 7\ntotal_inactive_file {150 * KIB}\n",
            },
            200,  # its file cache is dropped when memory is wanted
            500,
        ),
        ({"sys/fs/cgroup/memory.max": "what\n", "proc/self/cgroup": "nonsense\n"}, 800, 1000),
    ],
)
def test_the_least_memory_counts(tmp_path: Path, files: dict[str, str], free: int, total: int) -> None:
    meminfo = {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 800 kB\n"}
    assert CpuBackend(describe(tmp_path, meminfo | files)).memory() == MemoryInfo(free * KIB, total * KIB)


@pytest.mark.skipif(not os.access(V1_MEMORY / "cgroup.procs", os.W_OK), reason="no writable `memory` of version 1")
def test_a_limited_process_sees_its_memory() -> None:
    group = V1_MEMORY / f"polyfleet-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(2**30))
        code = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        code += "from polyfleet.backends.cpu import CpuBackend; print(CpuBackend().memory().total_bytes)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(2**30)
    finally:
        group.rmdir()


@pytest.mark.skipif(not os.access(V1 / "cgroup.procs", os.W_OK), reason="no writable cgroup of version 1 with `cpu`")
def test_a_limited_process_takes_fewer_threads() -> None:
    group = V1 / f"polyfleet-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("60000")
        code = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        code += "from polyfleet.executors.persistent import choose_threads; print(choose_threads(0))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "1"
    finally:
        group.rmdir()
