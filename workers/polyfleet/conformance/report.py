"""The report: one row a check, as text and as JSON."""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum, unique
from typing import Any


@unique
class Outcome(str, Enum):
    """Skipped is for what this machine can't have (one device, no graphs), never for what went wrong."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check with its measured detail."""

    name: str
    outcome: Outcome
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """All checks of one backend on one machine."""

    backend: str
    device: str
    software: dict[str, str]
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(each.outcome is not Outcome.FAILED for each in self.checks)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {**asdict(self), "passed": self.passed}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ConformanceReport":
        """What to_json gave."""
        rows = ({**each, "outcome": Outcome(each["outcome"])} for each in value["checks"])
        checks = tuple(CheckResult(**each) for each in rows)
        return cls(value["backend"], value["device"], value["software"], checks)

    def to_text(self) -> str:
        """For people, 1 line a check."""
        lines = [f"Conformance of {self.backend} on {self.device}"]
        lines += [f"  {name} {value}" for name, value in self.software.items()]
        width = max(len(each.name) for each in self.checks)
        lines += [f"{each.outcome.value:<8}{each.name:<{width + 2}}{each.detail}" for each in self.checks]
        counts = [sum(each.outcome is outcome for each in self.checks) for outcome in Outcome]
        return "\n".join([*lines, "{} passed, {} failed, {} skipped".format(*counts)])


def software_versions(packages: Sequence[str] = ("torch", "triton", "polyfleet", "wgpu")) -> dict[str, str]:
    """What decides numbers beside the hardware; packages that are not installed are left out."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
