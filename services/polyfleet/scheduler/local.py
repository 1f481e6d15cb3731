"""LocalScheduler: Ray and the scheduler on this machine, in a process of their own, for as long as a block lasts.

    with LocalScheduler(SchedulerConfig(state_dir="/tmp/fleet"), places={"cpu": 2}) as scheduler:
        grpc.insecure_channel(scheduler.fleet_address)

The caller imports no Ray, and sees nothing of its output.
"""

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.scheduler.ports import check_ports, free_address
from polyfleet.wire.config import ConfigError

START_SECONDS = 90.0
STOP_MARGIN_SECONDS = 60.0
OUTPUT_NAME = "scheduler-process.log"
LONGEST_FOLDER = 24  # Ray's sockets lie below, and their paths may have 103 characters


class LocalScheduler:
    """Starts on `start` or entry, stops every process of the local fleet on `shutdown` or exit.

    Port 0 in the configuration takes any free port. Raises ConfigError with one sentence when it can't start; a port
    that is in use is found before Ray starts. When this process dies, the fleet is stopped too.
    """

    def __init__(self, config: SchedulerConfig, places: Mapping[str, int] | None = None) -> None:
        listen, metrics_listen = free_address(config.listen), free_address(config.metrics_listen)
        self.config = msgspec.structs.replace(
            config, listen=listen, metrics_listen=metrics_listen, state_dir=str(config.state_path.absolute())
        )
        self._places = places
        self._process: subprocess.Popen[bytes] | None = None
        self._ray_folder = ""
        self.ray_address = ""

    @property
    def fleet_address(self) -> str:
        """host:port of the Fleet service."""
        return self.config.listen

    @property
    def metrics_address(self) -> str:
        """host:port of /metrics."""
        return self.config.metrics_listen

    @property
    def pid(self) -> int | None:
        """Of its process, whose descendants are all of Ray; None when it does not run."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> "LocalScheduler":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def start(self) -> None:
        """Start Ray and the scheduler; returns when the Fleet service answers."""
        check_ports(self.config)
        logs = self.config.state_path / "logs"
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"The folder {logs} can't be made: {error.strerror}.") from None
        # A file without a name: none is left behind, however this process ends.
        with tempfile.TemporaryFile("w+") as file, (logs / OUTPUT_NAME).open("ab") as output:
            yaml.safe_dump({"scheduler": msgspec.to_builtins(self.config)}, file)
            file.seek(0)
            self._ray_folder = made_ray_folder()
            self._process = subprocess.Popen(
                self._command(f"/dev/fd/{file.fileno()}"),
                pass_fds=(file.fileno(),),
                stdin=subprocess.PIPE,  # its end tells the process that we are gone
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us: we stop it in order
            )
            try:
                self.ray_address = self._first_line()["ray"]
            except BaseException:
                self.shutdown()
                raise

    def _command(self, config_file: str) -> list[str]:
        command = [sys.executable, "-m", "polyfleet.scheduler", "--config", config_file, "--stop-at-eof"]
        command += ["--ray-folder", self._ray_folder]
        if self._places:
            command += ["--places", ",".join(f"{family}={count}" for family, count in self._places.items())]
        return command

    def _first_line(self) -> dict[str, Any]:
        """What the process says once it serves. Raises ConfigError with its error, or when it says nothing."""
        assert self._process
        assert self._process.stdout
        line = _read_line(self._process.stdout.fileno(), START_SECONDS)
        logs = self.config.state_path / "logs"
        if not line:
            raise ConfigError(f"The scheduler did not start; {logs / OUTPUT_NAME} says why.")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise ConfigError(said["error"])
        return said

    def shutdown(self) -> None:
        """Stop workers, launchers, scheduler and Ray; returns when their processes have ended. Twice does no harm."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        process.terminate()
        try:
            process.wait(self.config.shutdown_seconds + STOP_MARGIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        shutil.rmtree(self._ray_folder, ignore_errors=True)  # still there when it was killed


def made_ray_folder() -> str:
    """A new folder of this user's alone for what Ray writes, with a path that is short enough for Ray."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="polyfleet-", dir=usual if len(usual) <= LONGEST_FOLDER else "/tmp")


def _read_line(descriptor: int, seconds: float) -> bytes:
    """One line from a pipe; what there is of it when the pipe ends or the time is over."""
    deadline = time.monotonic() + seconds
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
            if not (data := os.read(descriptor, 4096)):
                break
            line += data
    return line
