"""The scheduler's Fleet service as operators call it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from polyfleet.cli.errors import CliError, ExitCode, calling
from polyfleet.cli.options import check_address, chosen_tls_dir, read_secret
from polyfleet.cli.state_folder import known_token
from polyfleet.process.channels import FleetAccess, fleet_tls
from polyfleet.process.config import ConfigError
from polyfleet.process.keys import Role
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import operations_pb2
from polyfleet.v1.fleet_pb2_grpc import FleetStub

TIMEOUT_SECONDS = 10.0
CHECK_SECONDS = 130.0  # more than a worker takes
LOAD_SECONDS = 150.0  # more than the scheduler waits for a worker


class FleetClient:
    """One method per call. Raises grpc.RpcError."""

    def __init__(self, channel: grpc.Channel, access: FleetAccess) -> None:
        self._stub = FleetStub(channel)
        self._metadata = access.metadata

    def snapshot(self) -> pb.FleetSnapshot:
        """All workers and deployments now."""
        request = pb.ListWorkersRequest()
        answer: pb.FleetSnapshot = self._stub.ListWorkers(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata)
        return answer

    def deploy(self, deployment: pb.ModelDeployment) -> pb.ModelDeployment:
        """Create or change a deployment; gives it back as stored."""
        request = pb.DeployRequest(deployment=deployment)
        answer: pb.DeployResponse = self._stub.Deploy(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata)
        return answer.deployment

    def check_model(self, wanted: pb.ModelDeployment) -> pb.CheckModelResponse:
        """How what it wishes for would fit the fleet's devices; deploys nothing."""
        request = pb.CheckModelRequest(source=wanted.source, accelerators=wanted.accelerators, options=wanted.options)
        answer: pb.CheckModelResponse = self._stub.CheckModel(request, timeout=CHECK_SECONDS, metadata=self._metadata)
        return answer

    def undo_rollout(self, name: str, revision: int = 0) -> pb.ModelDeployment:
        """Go back to an earlier revision, 0: to the one before; gives the deployment back as stored."""
        request = pb.UndoRolloutRequest(name=name, revision=revision)
        answer: pb.UndoRolloutResponse = self._stub.UndoRollout(
            request, timeout=TIMEOUT_SECONDS, metadata=self._metadata
        )
        return answer.deployment

    def undeploy(self, name: str) -> None:
        """Drain and stop a deployment's workers."""
        self._stub.Undeploy(pb.UndeployRequest(name=name), timeout=TIMEOUT_SECONDS, metadata=self._metadata)

    def drain(self, worker_id: str) -> None:
        """Let one worker finish what it runs, then stop."""
        self._stub.Drain(pb.DrainRequest(worker_id=worker_id), timeout=TIMEOUT_SECONDS, metadata=self._metadata)

    def usage(self, first_day: str = "", last_day: str = "", tenant: str = "") -> list[pb.UsageRow]:
        """What was used, by day, tenant and model."""
        request = pb.UsageRequest(first_day=first_day, last_day=last_day, tenant=tenant)
        answer: pb.UsageResponse = self._stub.Usage(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata)
        return list(answer.rows)

    def devices(self) -> list[operations_pb2.FleetDevice]:
        """Those that workers are on."""
        request = operations_pb2.ListDevicesRequest()
        answer = self._stub.ListDevices(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata)
        return list(answer.devices)

    def log_lines(self, worker_id: str, lines: int) -> list[str]:
        """The last lines that a worker has logged."""
        request = operations_pb2.TailLogRequest(worker_id=worker_id, lines=lines)
        return list(self._stub.TailLog(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata).lines)

    def requests(self, tenant: str = "", model: str = "", limit: int = 0) -> operations_pb2.ListRequestsResponse:
        """Those that run, and the last that ended."""
        request = operations_pb2.ListRequestsRequest(tenant=tenant, model=model, limit=limit)
        answer: operations_pb2.ListRequestsResponse = self._stub.ListRequests(
            request, timeout=TIMEOUT_SECONDS, metadata=self._metadata
        )
        return answer

    def start_benchmark(self, plan: operations_pb2.BenchmarkPlan) -> operations_pb2.Benchmark:
        """Begin one; with everything said that the plan leaves out."""
        request = operations_pb2.StartBenchmarkRequest(plan=plan)
        return self._benchmark(self._stub.StartBenchmark, request)

    def benchmark(self, benchmark_id: str) -> operations_pb2.Benchmark:
        """One that is kept."""
        return self._benchmark(self._stub.GetBenchmark, operations_pb2.GetBenchmarkRequest(id=benchmark_id))

    def cancel_benchmark(self, benchmark_id: str) -> operations_pb2.Benchmark:
        """End one that runs."""
        return self._benchmark(self._stub.CancelBenchmark, operations_pb2.CancelBenchmarkRequest(id=benchmark_id))

    def _benchmark(self, call: Any, request: Any) -> operations_pb2.Benchmark:
        found: operations_pb2.Benchmark = call(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata).benchmark
        return found

    def benchmarks(self) -> list[operations_pb2.Benchmark]:
        """Those that are kept, the latest first."""
        request = operations_pb2.ListBenchmarksRequest()
        return list(self._stub.ListBenchmarks(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata).benchmarks)

    def add_adapter(self, deployment: str, name: str, source: str) -> pb.Adapter:
        """Load an adapter into a deployment's workers; as the first one has it."""
        request = pb.AddAdapterRequest(deployment=deployment, name=name, source=source)
        answer: pb.AddAdapterResponse = self._stub.AddAdapter(request, timeout=LOAD_SECONDS, metadata=self._metadata)
        return answer.adapter

    def drop_adapter(self, deployment: str, name: str) -> None:
        """Let a deployment's workers drop it."""
        request = pb.DropAdapterRequest(deployment=deployment, name=name)
        self._stub.DropAdapter(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata)


@contextmanager
def open_fleet(fleet: str, token_file: Path | None) -> Iterator[FleetClient]:
    """A client of the scheduler at `fleet`; failures of its calls become CliErrors.

    Without a token file, that of this user's `polyfleet serve` on this machine is used. Certificates are those of the
    command's --fleet-tls-dir.
    """
    check_address(fleet)
    token = read_secret(token_file or known_token(fleet), "fleet token")
    try:
        access = FleetAccess(token, fleet_tls(chosen_tls_dir()))
    except ConfigError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None
    with calling(fleet, "--fleet-token-file"), access.blocking_channel(fleet, Role.SCHEDULER) as channel:
        yield FleetClient(channel, access)
