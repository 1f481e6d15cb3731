"""How much CPU time and memory this process's cgroups allow: version 2 and version 1, its own group and all above."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MOUNTS_V1 = ("cpu", "cpu,cpuacct")  # below sys/fs/cgroup


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of CPU time, the least that any group allows; None without a limit. `root` stands for /."""
    return min(_quotas(root / "sys/fs/cgroup", _groups(root)), default=None)


def memory_limits(root: Path = Path("/")) -> tuple[tuple[int, int], ...]:
    """Limit and use in bytes of each group that has a limit; file cache that can be dropped is not used.

    Version 1 writes a number near 2^63 where there is no limit.
    """
    mount, groups = root / "sys/fs/cgroup", _groups(root)
    own = next((path for names, path in groups.items() if "memory" in names.split(",")), "/")
    found = [
        *(
            _memory(each, "memory.max", "memory.current", "inactive_file")
            for each in _ancestors(mount, groups.get("", "/"))
        ),
        *(
            _memory(each, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            for each in _ancestors(mount / "memory", own)
        ),
    ]
    return tuple(each for each in found if each is not None)


def _memory(folder: Path, limit: str, used: str, droppable: str) -> tuple[int, int] | None:
    allowed, taken = _read(folder / limit), _read(folder / used)
    if not allowed.isdecimal():
        return None
    pairs = (line.split() for line in _read(folder / "memory.stat").splitlines())
    cache = sum(int(each[1]) for each in pairs if len(each) == 2 and each[0] == droppable and each[1].isdecimal())
    return int(allowed), max(0, int(taken) - cache) if taken.isdecimal() else 0


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
