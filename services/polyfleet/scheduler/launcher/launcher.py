"""Launcher: the Ray actor that looks after one worker, on its node. Ray restarts it; the worker outlives it."""

import asyncio
import logging
from pathlib import Path

from polyfleet.process.channels import fleet_access
from polyfleet.process.logs import log_fields
from polyfleet.scheduler.launcher.attached import AttachedWorker
from polyfleet.scheduler.launcher.latest_report import LatestReport
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase
from polyfleet.scheduler.launcher.spawned import SpawnedWorker
from polyfleet.scheduler.log_files import keep_small, log_to_file

LONGEST_WAIT_SECONDS = 5.0
RETRY_SECONDS = 5.0
log = logging.getLogger(__name__)


class Launcher:
    """Begins its work when created, so that a restart by Ray needs nobody's help."""

    async def __init__(self, spec: LaunchSpec) -> None:  # type: ignore[misc]  # Ray awaits it
        log_to_file(Path(spec.state_dir), "launchers.log", spec.log_level, "launcher")
        self._logs = asyncio.create_task(keep_small(Path(spec.state_dir) / "logs"))
        self._latest = LatestReport(spec)
        access = fleet_access(spec.fleet_token_file, spec.fleet_tls_dir)
        look_after = AttachedWorker if spec.launch.mode == "attach" else SpawnedWorker
        self._worker = look_after(spec, self._latest, access)
        with log_fields(worker_id=spec.worker_id, deployment=spec.deployment):
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                return await self._worker.run()
            except Exception:
                log.exception("The launcher failed and tries again.")
                self._latest.publish(Phase.FAILED, reason="The launcher failed; launchers.log says why.")
                await asyncio.sleep(RETRY_SECONDS)

    async def next_report(self, after: int) -> LauncherReport:
        """The report as soon as its revision differs from `after`, at the latest in a few seconds."""
        return await self._latest.next(after, LONGEST_WAIT_SECONDS)

    async def stop(self, grace: float) -> None:
        """Let the worker finish for at most `grace` seconds, then stop it; returns when it has left."""
        await self._worker.stop(grace)
