"""A launcher and a worker as the scheduler knows them."""

from polyfleet.scheduler.config import LaunchConfig
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase, load_request
from polyfleet.v1 import fleet_pb2 as pb

WISH = pb.ModelDeployment(name="d", source="/m.gguf", workers=2)


def launcher(
    worker_id: str, wish: pb.ModelDeployment = WISH, host: str = "n-1", accelerator: str = "cpu"
) -> LauncherReport:
    load = load_request(wish).SerializeToString(deterministic=True)
    spec = LaunchSpec(worker_id, accelerator, load, LaunchConfig(), "127.0.0.1:1", "/state", node_id=host)
    return LauncherReport(spec, Phase.WATCHING)


def record(worker_id: str, state: str = "READY", deployment: str = "d", host: str = "n-1") -> Record:
    model = None if state in ("STARTING", "LOADING") else pb.ModelInfo(name="d")
    info = pb.WorkerInfo(worker_id=worker_id, deployment=deployment, accelerator="cpu", host=host, model=model)
    return Record(info, pb.WorkerStatus(state=pb.WorkerState.Value(f"WORKER_STATE_{state}")), stream=1)
