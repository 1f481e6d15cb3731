"""LocalScheduler: Ray and the scheduler on this machine, in a process of their own, for as long as a block lasts.

    with LocalScheduler(SchedulerConfig(state_dir="/tmp/fleet"), places={"cpu": 2}) as scheduler:
        grpc.insecure_channel(scheduler.fleet_address)

The caller imports no Ray, and sees nothing of its output.
"""

import contextlib
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import msgspec
import yaml

from polyfleet.process.config import ConfigError
from polyfleet.process.listening import check_free, free_address
from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.scheduler.launcher.backoff import Backoff
from polyfleet.scheduler.marks import RAY_FOLDER, end_workers, kill_marked

START_SECONDS = 90.0
START_TRIES = 3  # where it is Ray that fails
REVIVE_SECONDS = 600.0  # of more tries where workers serve on: Ray gives its parts 15 s, too few on a busy machine
STOP_MARGIN_SECONDS = 10.0
OUTPUT_NAME = "scheduler-process.log"
RAY_FOLDER_PREFIX = "polyfleet-"
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
        self._stopping: subprocess.Popen[bytes] | None = None
        self._ray_folder = ""
        self._begun = False  # whether anything may have to be ended
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
        """Start Ray and the scheduler; returns when the Fleet service answers. Ends what a killed one left behind."""
        check_ports(self.config)
        if self._folder_link.exists() and not self._folder_link.is_symlink():
            raise ConfigError(f"{self._folder_link} is no link to the folder of a Ray: move it away.")
        self._begun = True
        try:
            (self.config.state_path / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The folder {self.config.state_path / 'logs'} can't be made: {error.strerror}."
            ) from None
        with contextlib.suppress(OSError):
            self._ray_folder = os.readlink(self._folder_link)
        self._end_ray()
        end_workers(self.config.state_path, 0)
        self._try_to_start()

    def revive(self) -> str:
        """Start it again if it has ended; gives the reason why it had, nothing while it runs. The workers serve on.

        Raises ConfigError when Ray has not started for REVIVE_SECONDS, or the scheduler can't be started any more.
        """
        if self._process is None or self.running:
            return ""
        why = self._said().get("lost") or f"Its process ended with code {self._process.returncode}."
        self._forget_process()
        self._try_to_start(REVIVE_SECONDS)
        return why

    def kill(self) -> None:
        """End its process, which hangs: `revive` ends what is left of that Ray and starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _try_to_start(self, seconds: float = 0.0) -> None:
        """Try START_TRIES times and, with pauses, for as long as that."""
        deadline, pauses = time.monotonic() + seconds, Backoff()
        for tries in count(1):
            try:
                self._spawn()
                said = self._said(START_SECONDS)
            except BaseException:
                self.shutdown()
                raise
            if "ray" in said:
                self.ray_address = said["ray"]
                return
            self._forget_process()
            if "lost" not in said or (tries >= START_TRIES and time.monotonic() >= deadline):
                break
            if tries >= START_TRIES:
                time.sleep(pauses.delay_after(0.0))
        problem = said.get("error") or said.get("lost") or "The scheduler did not start."
        raise ConfigError(problem if "error" in said else f"{problem} {self._output} says more.")

    def _spawn(self) -> None:
        # A file without a name: none is left behind, however this process ends.
        with tempfile.TemporaryFile("w+") as file, self._output.open("ab") as output:
            yaml.safe_dump({"scheduler": msgspec.to_builtins(self.config)}, file)
            file.seek(0)
            self._ray_folder = made_ray_folder()
            self._folder_link.symlink_to(self._ray_folder)
            self._process = subprocess.Popen(
                self._command(f"/dev/fd/{file.fileno()}"),
                pass_fds=(file.fileno(),),
                stdin=subprocess.PIPE,  # its end tells the process that we are gone
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us: we stop it in order
            )

    def _command(self, config_file: str) -> list[str]:
        command = [sys.executable, "-m", "polyfleet.scheduler", "--config", config_file, "--stop-at-eof"]
        command += ["--ray-folder", self._ray_folder]
        if self._places:
            command += ["--places", ",".join(f"{accelerator}={number}" for accelerator, number in self._places.items())]
        return command

    def _said(self, seconds: float = 0.0) -> dict[str, str]:
        """The process's news: its addresses once it serves, an error, or how it lost Ray; nothing if it has none."""
        assert self._process
        assert self._process.stdout
        return _read_news(self._process.stdout.fileno(), seconds)

    @property
    def _output(self) -> Path:
        return self.config.state_path / "logs" / OUTPUT_NAME

    @property
    def _folder_link(self) -> Path:
        """Names Ray's folder for as long as there is one: whoever comes after a killed process ends what it left."""
        return self.config.state_path / "ray"

    def hurry(self) -> None:
        """Let a shutdown that is under way wait for nothing that runs."""
        if self._stopping is not None:
            self._stopping.terminate()

    def shutdown(self) -> None:
        """Stop workers, launchers, scheduler and Ray; returns when their processes have ended. Twice does no harm."""
        if not self._begun:
            return
        self._begun = False
        status = self._forget_process()
        end_workers(self.config.state_path, 0 if status is None else self.config.shutdown_seconds)

    def _forget_process(self) -> int | None:
        """Stop the process, if it runs, and its Ray: its exit status, None when it had to be killed."""
        process, self._process = self._process, None
        if process is None:
            self._end_ray()
            return 0
        assert process.stdin
        assert process.stdout
        self._stopping = process
        process.stdin.close()
        process.terminate()
        status: int | None = None
        try:
            status = process.wait(2 * self.config.shutdown_seconds + STOP_MARGIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._stopping = None
        self._end_ray()
        return status

    def _end_ray(self) -> None:
        """End what is left of the last Ray: all, when its process was killed."""
        folder = self._ray_folder
        if os.path.basename(folder).startswith(RAY_FOLDER_PREFIX):
            kill_marked(RAY_FOLDER, folder)
            shutil.rmtree(folder, ignore_errors=True)
        self._folder_link.unlink(missing_ok=True)
        self._ray_folder = ""


def made_ray_folder() -> str:
    """A new folder of this user's alone for what Ray writes, with a path that is short enough for Ray."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix=RAY_FOLDER_PREFIX, dir=usual if len(usual) <= LONGEST_FOLDER else "/tmp")


def _read_news(descriptor: int, seconds: float) -> dict[str, str]:
    """The first line of JSON from a pipe, whatever Ray prints besides; empty when the pipe or the time ends before."""
    deadline = time.monotonic() + seconds
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())) and (data := os.read(descriptor, 4096)):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError):
                    return msgspec.json.decode(line, type=dict[str, str])
    return {}


def check_ports(config: SchedulerConfig) -> None:
    """Raise ConfigError that names the first address which can't be listened on, and its option."""
    for address, option in ((config.listen, "--listen"), (config.metrics_listen, "--metrics-listen")):
        check_free(address, option, lowest_port=1)
