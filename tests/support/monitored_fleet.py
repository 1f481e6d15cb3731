"""A whole stack to look at: `polyfleet serve` with TLS and a key, a worker of every vendor, traffic, Prometheus."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import yaml
from tests.support.prometheus import PrometheusProcess, configuration
from tests.support.serve_process import PATIENCE_SECONDS, POLYFLEET, ServeProcess, wait_for
from tests.support.tls_files import write_tls_files
from tests.support.vendor_workers import MACHINES

from polyfleet.cli.stack.settings import MODEL_NAME
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1.inference_pb2_grpc import InferenceStub
from polyfleet.wire.auth import FLEET_TOKEN_FILE

ROOT = Path(__file__).parents[2]
KEY_ID = "team-a"
FAKE_FAILURE = 903  # the fake engine fails a prompt that begins so


class MonitoredFleet:
    """What the tests talk to. Calls carry the key; those that fail on purpose raise nothing."""

    def __init__(self, stack: ServeProcess, prometheus: PrometheusProcess, key: str, roots: bytes) -> None:
        self.stack, self.prometheus = stack, prometheus
        self._metadata = (("authorization", f"Bearer {key}"),)
        self._channel = grpc.secure_channel(stack.grpc, grpc.ssl_channel_credentials(roots))
        self._stub: Any = InferenceStub(self._channel)

    def generate(self, model: str, prompt: list[int] | str, max_tokens: int, timeout: float = PATIENCE_SECONDS) -> Any:
        """A running Generate call."""
        request = pb.GenerateRequest(model=model, max_tokens=max_tokens, ignore_eos=True)
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.extend(prompt)
        return self._stub.Generate(request, metadata=self._metadata, timeout=timeout)

    def ask(self, model: str, prompt: list[int] | str, max_tokens: int, timeout: float = PATIENCE_SECONDS) -> None:
        """A call from its beginning to its end, whatever that is."""
        with suppress(grpc.RpcError):
            for _ in self.generate(model, prompt, max_tokens, timeout):
                pass

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Requests to both models inside, one at a time each, with a prompt that repeats; to one with a text, too."""
        end = threading.Event()

        def keep_asking(model: str, prompt: list[int] | str, max_tokens: int) -> None:
            while not end.is_set():
                self.ask(model, prompt, max_tokens)
                end.wait(0.05)

        ids = list(range(5, 69))
        threads = [
            threading.Thread(target=keep_asking, args=each)
            for each in ((MODEL_NAME, ids, 8), (MODEL_NAME, "The sea is", 8), ("fake", ids, 40))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()
            for thread in threads:
                thread.join()

    def cause_errors(self) -> None:
        """A failure, a wrong request, a deadline that passes, a caller that leaves, one without a key."""
        self.ask("fake", [FAKE_FAILURE, 1, 2], 8)
        self.ask("no-such-model", [1], 8)
        self.ask(MODEL_NAME, [5, 6, 7], 2000, timeout=0.5)
        leaving = self.generate(MODEL_NAME, [5, 6, 7], 2000)
        next(leaving)
        leaving.cancel()
        with suppress(grpc.RpcError):
            self._stub.ListModels(pb.ListModelsRequest())

    def kill_worker(self) -> None:
        """Kill the stack's own worker under a request, which goes on with the worker that is started next."""
        stream = self.generate(MODEL_NAME, [5, 6, 7], 300)
        next(stream)
        (lock,) = self.stack.locks()
        os.kill(lock["pid"], signal.SIGKILL)
        assert sum(len(each.token_ids) for each in stream) > 0

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


@contextmanager
def vendor_workers(stack: ServeProcess, folder: Path) -> Iterator[Callable[[], None]]:
    """A worker of every vendor in the stack's fleet, as long as the block lasts; what is given fails once they end."""
    command = [sys.executable, "-m", "tests.support.vendor_workers", stack.fleet, str(folder)]
    token = stack.state_dir / "fleet.token"
    wait_for(
        lambda: token.exists() or not stack.running, "the stack's fleet token"
    )  # a worker without one ends at once
    environment = {**os.environ, FLEET_TOKEN_FILE: str(token)}
    with (folder / "workers.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)

        def check() -> None:
            assert process.poll() is None, (folder / "workers.log").read_text()[-3000:]

        try:
            yield check
        finally:
            process.kill()  # their engines end with it
            process.wait(30)


def secured(folder: Path) -> tuple[list[str], str, bytes]:
    """Flags of a `polyfleet serve` with TLS and a key; the key; the roots."""
    certificate, private = write_tls_files(folder)
    keys = folder / "keys.yaml"
    command = [*POLYFLEET, "keys", "create", KEY_ID, "--role", "operator", "--keys-file", str(keys)]
    key = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    (folder / "key").write_text(key)
    gateway: dict[str, Any] = {"tls_cert": str(certificate), "tls_key": str(private), "keys_file": str(keys)}
    gateway |= {"limits": {"queue_timeout": PATIENCE_SECONDS}}  # for the request whose worker is killed
    (folder / "config.yaml").write_text(yaml.safe_dump({"gateway": gateway}))
    flags = ["--config", str(folder / "config.yaml"), "--ca-file", str(certificate)]
    return [*flags, "--api-key-file", str(folder / "key")], key, certificate.read_bytes()


@contextmanager
def monitored_fleet(folder: Path) -> Iterator[MonitoredFleet]:
    """Everything up, every worker ready, and all that dashboards count has happened at least once."""
    for name in ("state", "vendors", "prometheus"):
        (folder / name).mkdir()
    flags, key, roots = secured(folder)
    stack = ServeProcess(folder / "state", *flags).start()
    with ExitStack() as exits:
        exits.callback(stack.stop)
        config = configuration(stack.gateway_metrics, stack.metrics)
        prometheus = exits.enter_context(PrometheusProcess(folder / "prometheus", config))
        check = exits.enter_context(vendor_workers(stack, folder / "vendors"))
        stack.wait_ready()
        fleet = MonitoredFleet(stack, prometheus, key, roots)
        exits.callback(fleet.close)
        everybody = len(MACHINES) + 1

        def all_seen() -> bool:
            check()
            return prometheus.values("sum(polyfleet_worker_ready)") == [everybody]

        wait_for(all_seen, "Prometheus to see all")
        with fleet.traffic():
            fleet.cause_errors()
            fleet.kill_worker()
            wait_for(lambda: prometheus.values("sum(polyfleet_worker_restarts_total)") == [1], "the restart")
            yield fleet
