"""The engine's own process: loads one model and steps it, so that no token waits for the gRPC server's GIL.

Started as `python -m polyfleet.serving.engine_process --socket FD --urgent FD`; talks `polyfleet.serving.messages` over
these sockets and imports neither gRPC nor Ray. It lives as long as its model: it ends when the worker closes a socket,
when the worker dies (which closes both), when loading fails, and when the engine breaks down.
"""

import gc
import logging
import math
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import click

from polyfleet.backends import BackendUnavailable
from polyfleet.process import signals
from polyfleet.process.logs import LEVELS, set_up_logging
from polyfleet.serving import messages
from polyfleet.serving.engine_pacing import Books, Reports
from polyfleet.serving.engine_protocol import EngineFactory, Progress, ServedEngine, TravellingPrefixes
from polyfleet.serving.health.canary_rounds import CanaryRounds
from polyfleet.serving.log_tail import copy_lines
from polyfleet.serving.messages import (
    AdapterNews,
    Add,
    AddAdapter,
    Cancel,
    Command,
    DropAdapter,
    Failed,
    Load,
    Loaded,
    Loading,
    Refusal,
    StepNews,
)
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

log = logging.getLogger(__name__)

READABLE = (ValueError, BackendUnavailable)  # of loading: their message is a sentence, a traceback adds nothing


class WorkerSocket:
    """This process's ends of the sockets. EOFError or BrokenPipeError: the worker is gone."""

    def __init__(self, end: socket.socket, urgent: socket.socket) -> None:
        self._socket = end
        self._buffers = {each.fileno(): (each, bytearray()) for each in (urgent, end)}  # what is urgent is read first
        self._poll = select.poll()
        for descriptor in self._buffers:
            self._poll.register(descriptor, select.POLLIN)

    def watch(self, alarm: int) -> None:
        """Let `receive` end, without commands, also when this descriptor can be read from."""
        self._poll.register(alarm, select.POLLIN)

    def send(self, event: messages.Event) -> None:
        """Send, waiting while the worker is behind."""
        self._socket.sendall(messages.frame(event))

    def receive(self, timeout: float | None) -> list[Command]:
        """Commands that have come, Cancels first; waits up to `timeout` seconds (None: for ever) for the first.

        May raise EOFError.
        """
        wait = None if timeout is None else math.ceil(timeout * 1000)
        while ready := {descriptor for descriptor, _ in self._poll.poll(wait)}:
            commands: list[Command] = []
            for descriptor, (end, buffer) in self._buffers.items():
                if descriptor in ready:
                    data = end.recv(1 << 18)
                    if not data:
                        raise EOFError
                    buffer += data
                    commands += messages.take_commands(buffer)
            if commands or ready - self._buffers.keys():
                return commands
        return []


class Overtaking:
    """Lets Cancels overtake Adds: a sequence that is cancelled before its Add has come ends as soon as it is added."""

    def __init__(self) -> None:
        self.num_adds = 0  # that have come
        self._early: dict[str, int] = {}  # cancelled sequences whose Add may be on its way: the Cancel's `after`

    def sort(self, commands: list[Command]) -> list[Command]:
        """What to carry out of these commands, in the order in which they were read."""
        wanted: list[Command] = []
        for command in commands:
            wanted.append(command)
            if isinstance(command, Cancel) and command.after > self.num_adds:
                self._early[command.sequence_id] = command.after
            elif isinstance(command, Add):
                self.num_adds += 1
                if (after := self._early.pop(command.request.sequence_id, None)) is not None:
                    wanted.append(Cancel(command.request.sequence_id, after))
        self._early = {each: after for each, after in self._early.items() if after > self.num_adds}
        return wanted


def serve(engine: ServedEngine, worker: WorkerSocket, rounds: CanaryRounds) -> None:
    """Apply commands and step until the worker is gone (EOFError). While idle it sleeps on the socket.

    After a second of idleness the engine checks its books once; AssertionError ends the process, and so the worker.
    """
    if engine.alarm is not None:
        worker.watch(engine.alarm)
    overtaking, reports, books = Overtaking(), Reports(), Books()
    while True:
        commands = worker.receive(0 if engine.has_work else rounds.until_next(books.seconds))
        rounds.advance(engine)
        if not commands and not engine.has_work:
            engine.woken()
            if books.due and not engine.has_work:
                engine.check()
                books.checked()
            continue
        books.opened()
        commands = overtaking.sort(commands)
        refusals: list[Refusal] = []
        for command in commands:
            answer = apply(engine, command)
            if isinstance(answer, AdapterNews):
                worker.send(answer)
            elif answer is not None:
                refusals.append(answer)
        updates = engine.step() if engine.has_work else []
        status = reports.status(engine, bool(commands))
        worker.send(StepNews(rounds.take(updates), refusals, status, rounds.verdict(), overtaking.num_adds))


def apply(engine: ServedEngine, command: Command) -> Refusal | AdapterNews | None:
    """Carry out one command; the refusal when the engine can't take the sequence, or what became of an adapter."""
    if isinstance(command, Cancel):
        engine.cancel(command.sequence_id)
    elif isinstance(command, AddAdapter):
        return add_adapter(engine, command)
    elif isinstance(command, DropAdapter):
        engine.drop_adapter(command.fingerprint)
    elif isinstance(command, Add):
        try:
            engine.add(command.request)
        except FieldError as error:
            return Refusal(command.request.sequence_id, str(error))
    else:
        raise RuntimeError("An engine process loads one model only.")
    return None


def add_adapter(engine: ServedEngine, command: AddAdapter) -> AdapterNews:
    """Whatever is wrong with an adapter, the engine goes on."""
    try:
        return AdapterNews(command.number, engine.add_adapter(command.path))
    except Exception as error:
        if not isinstance(error, READABLE):
            log.exception("Loading an adapter failed.")
        return AdapterNews(command.number, None, sentence(error, f"{command.path} can't be loaded"))


def load(factory: EngineFactory, worker: WorkerSocket) -> tuple[ServedEngine, CanaryRounds] | None:
    """Wait for Load, carry it out and run the canary; None when it failed, which the worker has been told."""
    (command,) = worker.receive(None)
    if not isinstance(command, Load):
        raise RuntimeError("The first command must be Load.")
    try:
        engine = factory(command.path, command.options, lambda progress, phase: worker.send(Loading(progress, phase)))
        adapters = []
        for path in command.adapters:
            worker.send(Loading(1.0, f"loading the adapter {path}"))
            adapters.append(engine.add_adapter(path))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        if not isinstance(error, READABLE):
            log.exception("Loading failed.")
        worker.send(Failed(sentence(error, f"{command.path} can't be loaded")))
        return None
    rounds = CanaryRounds(engine.canary.now() if engine.canary else None, command.canary_interval)
    rounds.advance(engine)
    while engine.has_work:
        worker.send(Loading(1.0, "answering the canary"))
        rounds.take(engine.step())
    room = open_room(engine, command.transfer)
    if room is not None:
        worker.watch(room.descriptor)
    door = room.door if room is not None else None
    digest, document = (engine.tokenizer.hash, engine.tokenizer.document) if engine.tokenizer else ("", b"")
    worker.send(Loaded(engine.facts, digest, document, engine.status(), rounds.verdict(), adapters, door))
    return engine, rounds


def open_room(engine: ServedEngine, settings: TransferSettings | None) -> TransferRoom | None:
    """Where the engine gives prefixes to other workers; None where it is not to."""
    if settings is None or not isinstance(engine, TravellingPrefixes):
        return None
    try:
        room = TransferRoom(settings)
    except OSError as error:
        log.error("No prefixes are exchanged with other workers: %s: %s.", settings.listen, error.strerror or error)
        return None
    engine.attend(room)
    return room


def sentence(error: Exception, lead: str) -> str:
    """An error in one sentence: its first line, behind `lead` unless the error was made to be read."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return first if isinstance(error, READABLE) else f"{lead}: {first}"


def run(worker: WorkerSocket, factory: EngineFactory) -> int:
    """Load and serve; the exit status."""
    try:
        loaded = load(factory, worker)
        if loaded is None:
            return 3
        engine, rounds = loaded
        serve(engine, worker, rounds)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        log.exception("The engine broke down.")
        worker.send(Failed(sentence(error, "The engine broke down")))
    return 1


def load_served(path: str, options: EngineOptions, progress: Progress) -> ServedEngine:
    """`served_engine.load`, imported here: what can't be imported fails as loading does, which the worker is told."""
    with lasting():
        from polyfleet.serving.served_engine import load

    return load(path, options, progress)


@contextmanager
def lasting() -> Iterator[None]:
    """What is made meanwhile stays: nobody looks for garbage in it, now (which takes a tenth of imports) or later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@click.command()
@click.option("--socket", "descriptor", type=int, required=True, help="Inherited socket to the worker.")
@click.option("--urgent", type=int, required=True, help="Another one, for what overtakes the rest.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info")
@click.pass_obj
def main(factory: EngineFactory, descriptor: int, urgent: int, log_level: str) -> None:
    """Run the engine that the command's object loads, for a worker; started by it, not by hand."""
    signals.ignore()  # the worker decides when to end; a terminal signals the whole group
    set_up_logging(log_level, process="engine")
    copy_lines("engine")
    with socket.socket(fileno=descriptor) as end, socket.socket(fileno=urgent) as express:
        worker = WorkerSocket(end, express)
        raise SystemExit(run(worker, factory))


if __name__ == "__main__":
    main(obj=load_served)
