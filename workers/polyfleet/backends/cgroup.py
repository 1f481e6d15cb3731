"""How much CPU time this process's cgroups allow it: version 2 and version 1, its own group and all above it."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MOUNTS_V1 = ("cpu", "cpu,cpuacct")  # below sys/fs/cgroup


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of CPU time, the least that any group allows; None without a limit. `root` stands for /."""
    return min(_quotas(root / "sys/fs/cgroup", _groups(root)), default=None)


def _groups(root: Path) -> dict[str, str]:
    """Controllers ("" for version 2) -> this process's group, as /proc/self/cgroup has it."""
    lines = (line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines())
    return {each[1]: each[2] for each in lines if len(each) == 3}


def _quotas(mount: Path, groups: dict[str, str]) -> Iterator[float]:
    for folder in _ancestors(mount, groups.get("", "/")):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        yield from _cores(quota, period)
    own = next((path for names, path in groups.items() if "cpu" in names.split(",")), "/")
    for name in MOUNTS_V1:
        for folder in _ancestors(mount / name, own):
            yield from _cores(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ancestors(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container its path may be the host's: only the mount is there."""
    for path in (PurePosixPath(group), *PurePosixPath(group).parents):
        yield mount / str(path).lstrip("/")


def _cores(quota: str, period: str) -> Iterator[float]:
    if quota.isdigit() and period.isdigit() and int(period):
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
