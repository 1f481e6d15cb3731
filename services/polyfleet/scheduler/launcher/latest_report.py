"""A launcher's latest report, and waiting for the next one."""

import socket
from dataclasses import replace

from polyfleet.process.revision import Revision
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase


class LatestReport:
    """Holds one LauncherReport; each change of it is a new revision."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.report = LauncherReport(spec, host=socket.gethostname())
        self._revision = Revision()

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
            )
        )

    def publish_stopping(self) -> None:
        """Say that the launcher was told to let its worker go."""
        if not self.report.stopping:
            self._set(replace(self.report, stopping=True))

    def _set(self, report: LauncherReport) -> None:
        if report != self.report:
            self._revision.advance()
            self.report = replace(report, revision=self._revision.number)

    async def next(self, after: int, seconds: float) -> LauncherReport:
        """The report as soon as its revision is not `after`; after `seconds` the report as it is."""
        await self._revision.wait(after, seconds)
        return self.report
