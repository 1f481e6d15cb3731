"""`python -m polyfleet.conformance [BACKEND]`: run every check and print the report as JSON."""

import json
import sys
import time
from collections.abc import Callable

from polyfleet.backends.protocol import BackendUnavailable, accelerator_name
from polyfleet.conformance.checks import CHECKS, Failed, Skipped, Subject
from polyfleet.conformance.collectives import collectives
from polyfleet.conformance.report import CheckResult, ConformanceReport, Outcome, software_versions
from polyfleet.process.config import ConfigError
from polyfleet.tuning.choice import get_backend


def check(subject: Subject, run: Callable[[Subject], str]) -> CheckResult:
    """Run one check; whatever it raises is a result."""
    started = time.perf_counter()
    try:
        outcome, detail = Outcome.PASSED, run(subject)
    except Skipped as reason:
        outcome, detail = Outcome.SKIPPED, str(reason)
    except Failed as reason:
        outcome, detail = Outcome.FAILED, str(reason)
    except Exception as error:  # a driver may throw anything: the report is about just that
        outcome, detail = Outcome.FAILED, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return CheckResult(run.__name__, outcome, detail, round(time.perf_counter() - started, 3))


def conformance(backend_name: str = "auto") -> ConformanceReport:
    """Every check on the backend's first device. Raises BackendUnavailable. Activates: for a process of its own."""
    backend = get_backend(backend_name)
    info = backend.devices()[0]
    subject = Subject(backend, info, backend.capabilities(info), backend.activate(info.index))
    results = tuple(check(subject, each) for each in (*CHECKS, collectives))
    name = f"{info.name} ({info.architecture})"
    versions = software_versions()
    if info.driver_version:
        versions["driver"] = info.driver_version
    return ConformanceReport(accelerator_name(backend.type), name, versions, results)


def main() -> None:
    """Print the report; exit status 1 when a check failed, 2 when the backend is absent."""
    try:
        report = conformance(*sys.argv[1:2])
    except (BackendUnavailable, ConfigError) as error:
        print(json.dumps({"error": str(error)}))
        sys.exit(2)
    print(json.dumps(report.to_json()))
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
