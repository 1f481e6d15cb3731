"""A launcher's latest report, and waiting for the next one."""

import asyncio
import contextlib
import os
import socket
from dataclasses import replace

from polyfleet.scheduler.launch import LauncherReport, LaunchSpec, Phase


class LatestReport:
    """Holds one LauncherReport; each change of it is a new revision."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.report = LauncherReport(spec, host=socket.gethostname(), launcher_pid=os.getpid())
        self._changed = asyncio.Event()

    def publish(
        self,
        phase: Phase,
        *,
        pid: int | None = None,
        worker_id: str | None = None,
        reason: str = "",
        restarted: bool = False,
    ) -> None:
        """Say where the launcher stands; pid and worker id stay as they are unless given."""
        known = self.report
        self._set(
            replace(
                known,
                phase=phase,
                pid=known.pid if pid is None else pid,
                worker_id=known.worker_id if worker_id is None else worker_id,
                reason=reason,
                restarts=known.restarts + restarted,
                revision=known.revision + 1,
            )
        )

    def publish_stopping(self) -> None:
        """Say that the launcher was told to let its worker go."""
        if not self.report.stopping:
            self._set(replace(self.report, stopping=True, revision=self.report.revision + 1))

    def _set(self, report: LauncherReport) -> None:
        if replace(report, revision=0) == replace(self.report, revision=0):
            return
        self.report = report
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def next(self, after: int, seconds: float) -> LauncherReport:
        """The report as soon as its revision is not `after`; after `seconds` the report as it is."""
        if self.report.revision == after:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
        return self.report
