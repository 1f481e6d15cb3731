"""`polyfleet simulate-workers`: a fleet's file as worker processes, for trying placement, for load and for chaos."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import click

from polyfleet.cli.commands.simulate import sentences
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import FILE, TEXT, check_address, examples, fleet_options
from polyfleet.cli.stack.processes import TERMINATE_SECONDS, Stopped, end, stop_on_signals
from polyfleet.cli.state_folder import known_token
from polyfleet.cli.terminal.output import err, out
from polyfleet.simulator.fleet_file import UNLIKE, FleetFile, SimulatedWorker, read_fleet

ENGINE = "polyfleet.cli.simulated.engine"
LOOK_SECONDS = 0.1
MAX_WORKERS = 256  # each is two processes
AT_ONCE_SECONDS = 2.0  # a worker that ended so soon by itself can't run at all


@click.command(
    "simulate-workers",
    epilog=examples(
        "polyfleet simulate-workers --role prefill",
        "polyfleet simulate-workers fleet.yaml --model chat --fleet 10.0.0.1:50052 --fleet-token-file token",
    ),
)
@click.argument("fleet_file", metavar="[FILE]", type=FILE, required=False)
@click.option("--only", type=TEXT, metavar="WORKER", help="One of the file's workers, such as fast-0, in this process.")
@click.option("--model", type=TEXT, default="simulated", show_default=True, help="Served name.")
@click.option(
    "--role", type=click.Choice(["both", "prefill", "decode"]), help="What they are for.  [default: as FILE says]"
)
@click.option("--listen", type=TEXT, metavar="HOST:PORT", help="Of the one of --only.  [default: 127.0.0.1:0]")
@click.option(
    "--advertise-host", type=TEXT, metavar="HOST", help="Where gateways reach that one.  [default: as --listen]"
)
@fleet_options
def simulate_workers(
    fleet_file: Path | None,
    only: str | None,
    model: str,
    role: str | None,
    fleet: str,
    fleet_token_file: Path | None,
    **own: str | None,
) -> None:
    """Start a worker process for each one of a fleet's FILE (as `polyfleet simulate` reads it; default: 20 of three
    speeds), and register them with the scheduler, such as that of `polyfleet serve`. Until Ctrl-C.

    They need neither model nor device; steps take as long as simulated. A worker is killed and started again as
    `failures` of the file say. Its tokens are a function of prompt and position. One with a role registers with it, but
    nothing travels between simulated workers: each computes its own prompts.
    """
    check_address(fleet)
    path = fleet_file or UNLIKE
    with sentences():
        wanted = read_fleet(path)
    token_file = fleet_token_file or known_token(fleet)
    if only is not None:
        worker = find(wanted, only)
        own["role"] = role or worker.group.role
        sys.exit(run_one(path, worker, model, fleet, token_file, own))
    if given := [name for name, value in own.items() if value]:
        raise CliError(f"--{given[0].replace('_', '-')} is for the one worker of --only.", ExitCode.BAD_INPUT)
    command = [sys.executable, "-m", "polyfleet.cli", "simulate-workers", str(path), "--model", model, "--fleet", fleet]
    command += ["--fleet-token-file", str(token_file)] if token_file else []
    command += ["--role", role] if role else []
    if (count := len(wanted.each_worker())) > MAX_WORKERS:
        problem = f"{path} has {count} workers, more than {MAX_WORKERS} on one machine: start some with --only."
        raise CliError(problem, ExitCode.BAD_INPUT)
    herd = Herd(wanted.each_worker(), command)
    out.print(f"{count} simulated workers register at {fleet}. Ctrl-C ends them.", markup=False)
    herd.run()


def find(fleet: FleetFile, worker_id: str) -> SimulatedWorker:
    """The worker of that id. Raises CliError."""
    workers = fleet.each_worker()
    for each in workers:
        if each.worker_id == worker_id:
            return each
    known = ", ".join(each.worker_id for each in workers[:50])
    raise CliError(f"There is no worker {worker_id!r:.80}; there are: {known}.", ExitCode.BAD_INPUT)


def run_one(
    path: Path,
    worker: SimulatedWorker,
    model: str,
    fleet: str,
    token_file: Path | None,
    own: Mapping[str, str | None],
) -> int:
    """Serve as this worker until told to end; the process's exit status. `own`: its role, and where it listens. Raises
    CliError."""
    import asyncio

    from polyfleet.process.logs import set_up_logging
    from polyfleet.serving.command import config_of
    from polyfleet.serving.command import main as worker_command
    from polyfleet.serving.log_tail import TAIL
    from polyfleet.serving.process import StartError, WorkerProcess

    given = {"worker-id": worker.worker_id, "accelerator": worker.group.accelerator, "fleet": fleet}
    given |= {"model": f"{path}#{worker.worker_id}", "model-name": model}
    given |= {"fleet-token-file": str(token_file)} if token_file else {}
    given |= {name.replace("_", "-"): value for name, value in own.items() if value}
    arguments = [f"--{name}={value}" for name, value in given.items()]
    options = worker_command.make_context("worker", arguments).params
    set_up_logging(options["log_level"], process="worker")
    TAIL.install("worker")
    try:
        process = WorkerProcess(config_of(options), f"simulated {worker.group.name}".strip(), ENGINE)
        return asyncio.run(process.run())
    except StartError as error:
        raise CliError(str(error)) from None


class Herd:
    """Worker processes, each there but for its failures. `command` starts one, given its id; `clock` gives seconds."""

    def __init__(
        self, workers: Iterable[SimulatedWorker], command: list[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._workers = tuple(workers)
        self._command = command
        self._clock = clock
        self._began = clock()
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}  # with the second of its start

    def run(self) -> None:
        """Look after them until Ctrl-C. Raises CliError when one can't run."""
        with suppress(Stopped), stop_on_signals(lambda: None):
            try:
                while True:
                    self.look()
                    time.sleep(LOOK_SECONDS)
            finally:
                self.stop()

    def look(self) -> None:
        """Kill who fails now, start who is to be there. Raises CliError when one can't run."""
        now = self._clock() - self._began
        for worker_id, group, place in self._workers:
            process, since = self._running.get(worker_id, (None, 0.0))
            if process is not None and process.poll() is not None:
                if now - since < AT_ONCE_SECONDS:
                    raise CliError(f"{worker_id} ended with status {process.returncode} at once.")
                del self._running[worker_id]
            elif process is not None and not group.is_up(place, now):
                err.print(f"{worker_id} fails.", markup=False)
                process.kill()
                process.wait()
                del self._running[worker_id]
            elif process is None and group.is_up(place, now):
                # a session of its own: the terminal's Ctrl-C does not reach it
                command = [*self._command, "--only", worker_id]
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
                self._running[worker_id] = process, now

    def stop(self) -> None:
        """Drain all, side by side; what still runs a while later is cut off. They are gone when it returns."""
        processes = [process for process, _ in self._running.values()]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + TERMINATE_SECONDS
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:
            if process.poll() is None:
                end(process, 0.0)
