"""What is known of one worker, all sources together. Pure; times are given."""

from dataclasses import dataclass, field

from polyfleet.placement.proto import ReportCheck
from polyfleet.scheduler.fleet.devices import WorkerDevices
from polyfleet.scheduler.launcher.launch import LauncherReport, Phase
from polyfleet.v1 import fleet_pb2 as pb

LOST_AFTER_SECONDS = 3.0
AGENT_LOST_AFTER_SECONDS = 15.0  # its way here is a long one
_SERVING = (pb.WORKER_STATE_READY, pb.WORKER_STATE_DRAINING)


def starting() -> pb.WorkerStatus:
    return pb.WorkerStatus(state=pb.WORKER_STATE_STARTING)


@dataclass(slots=True)
class Record:
    """One worker. `stream` is the registration stream that speaks for it now; -1: it never registered."""

    info: pb.WorkerInfo
    status: pb.WorkerStatus = field(default_factory=starting)
    heard: float = 0.0
    stream: int = -1
    lost: bool = False
    is_open: bool = False  # the stream has not ended
    reported: bool = False  # its process has told a status
    proven: bool = False  # it was READY with the model that it announces
    was_ready: bool = False  # with any, in this life of its process
    launcher: LauncherReport | None = None
    check: ReportCheck = field(default_factory=ReportCheck)
    revision: int = 0  # of its deployment, as its launcher was told; 0: of none that is known
    quarantine: str = ""  # what of its last report can't be
    devices: WorkerDevices | None = None

    @property
    def lost_after(self) -> float:
        """Seconds without a report."""
        return AGENT_LOST_AFTER_SECONDS if self.info.joined else LOST_AFTER_SECONDS

    @property
    def announced(self) -> pb.WorkerInfo:
        """What it is, without a model that it was never READY with."""
        if self.proven or not self.info.HasField("model"):
            return self.info
        bare = pb.WorkerInfo()
        bare.CopyFrom(self.info)
        bare.ClearField("model")
        return bare

    def taken(self, info: pb.WorkerInfo, stream: int, now: float) -> str:
        """Why another process than the one that registers as `info` owns the id; empty when it may have it."""
        launched = self.launcher.pid if self.launcher and self.launcher.phase is Phase.WATCHING else 0
        if launched and launched != info.pid:
            return f"its launcher runs it as process {launched}"
        if info.process and info.process == self.info.process:
            return ""
        silent = self.lost or now - self.heard > self.lost_after
        if not self.is_open or stream == self.stream or silent or (launched and launched != self.info.pid):
            return ""
        return f"process {self.info.pid} on {self.info.host or 'an unnamed host'} reports under it"

    @property
    def shown(self) -> pb.WorkerStatus:
        """How the worker is, all sources together."""
        report = self.launcher
        failed = report is not None and report.phase is Phase.FAILED
        if report and failed and self._is_about_me(report):
            own = self.status.reason if self.status.state == pb.WORKER_STATE_UNHEALTHY else ""
            return pb.WorkerStatus(state=pb.WORKER_STATE_UNHEALTHY, reason=own or report.reason)
        if report and not failed and (self.stream < 0 or (report.pid and report.pid != self.info.pid)):
            return pb.WorkerStatus(state=pb.WORKER_STATE_STARTING, reason=report.reason)
        if self.lost:
            silence = f"no report for {self.lost_after:.0f} s"
            if self.status.state == pb.WORKER_STATE_UNHEALTHY and self.status.reason:
                silence += f"; before that: {self.status.reason}"
            return pb.WorkerStatus(state=pb.WORKER_STATE_LOST, reason=silence, step=self.status.step)
        return self.status

    def _is_about_me(self, report: LauncherReport) -> bool:
        """Whether the launcher's failure is that of the process that registered, and not of one before it."""
        if self.stream < 0 or self.lost:
            return True
        return self.info.pid == report.pid if report.pid else self.status.state not in _SERVING
