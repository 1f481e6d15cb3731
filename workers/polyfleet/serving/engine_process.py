"""The engine's own process: loads one model and steps it, so that no token waits for the gRPC server's GIL.

Started as `python -m polyfleet.serving.engine_process --socket FD`; talks `polyfleet.serving.messages` over that
socket and imports neither gRPC nor Ray. It lives as long as its model: it ends when the worker closes the socket, when
the worker dies (which closes it too), when loading fails, and when the engine breaks down.
"""

import importlib
import logging
import math
import select
import socket
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol, cast

import click

from polyfleet.backends import BackendUnavailable
from polyfleet.engine.canary import Canary
from polyfleet.engine.request import EngineFacts, EngineOptions, EngineStatus, SequenceRequest, SequenceUpdate
from polyfleet.serving import messages
from polyfleet.serving.canary import CanaryRounds
from polyfleet.serving.messages import Add, Cancel, Command, Failed, Load, Loaded, Loading, Refusal, StepNews
from polyfleet.wire import signals
from polyfleet.wire.limits import FieldError
from polyfleet.wire.logs import LEVELS, set_up_logging

log = logging.getLogger(__name__)

DEFAULT_ENGINE = "polyfleet.serving.served_engine:load"
IDLE_CHECK_SECONDS = 1.0
READABLE = (ValueError, BackendUnavailable)  # of loading: their message is a sentence, a traceback adds nothing
Progress = Callable[[float, str], None]


class Assets(Protocol):
    """As `polyfleet.loading.model.TokenizerAssets`, whose module imports torch."""

    @property
    def hash(self) -> str:
        """sha256 of the document, in hex."""
        ...

    @property
    def document(self) -> bytes:
        """Canonical JSON."""
        ...


class EngineLike(Protocol):
    """What this process needs of `polyfleet.engine.Engine`, whose docstrings say more, and of a test's stand-in."""

    @property
    def facts(self) -> EngineFacts:
        """What it serves."""
        ...

    @property
    def tokenizer(self) -> "Assets | None":
        """What text needs; None for a model without a tokenizer."""
        ...

    @property
    def canary(self) -> Canary | None:
        """What shows whether it computes rightly; None when there is nothing to ask."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        ...

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence; raises FieldError."""
        ...

    def cancel(self, sequence_id: str) -> object:
        """End a sequence."""
        ...

    def step(self) -> list[SequenceUpdate]:
        """Compute one step."""
        ...

    def status(self) -> EngineStatus:
        """How it is doing."""
        ...

    def check(self) -> None:
        """Raise AssertionError unless blocks and ledger balance."""
        ...


EngineFactory = Callable[[str, EngineOptions, Progress], EngineLike]


class WorkerSocket:
    """This process's end of the socket. EOFError or BrokenPipeError: the worker is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, event: messages.Event) -> None:
        """Send, waiting while the worker is behind."""
        self._socket.sendall(messages.frame(event))

    def receive(self, timeout: float | None) -> list[Command]:
        """Commands that have come; waits up to `timeout` seconds (None: for ever) for the first. May raise EOFError."""
        wait = None if timeout is None else math.ceil(timeout * 1000)
        while self._poll.poll(wait):
            data = self._socket.recv(1 << 18)
            if not data:
                raise EOFError
            self._buffer += data
            commands = list(messages.take_commands(self._buffer))
            if commands:
                return commands
        return []


def serve(engine: EngineLike, worker: WorkerSocket, rounds: CanaryRounds) -> None:
    """Apply commands and step until the worker is gone (EOFError). While idle it sleeps on the socket.

    After a second of idleness the engine checks its books once; AssertionError ends the process, and so the worker.
    """
    unchecked = False
    while True:
        pause = rounds.until_next(IDLE_CHECK_SECONDS if unchecked else None)
        commands = worker.receive(0 if engine.has_work else pause)
        rounds.advance(engine)
        if not commands and not engine.has_work:
            engine.check()
            unchecked = False
            continue
        refusals = [refusal for command in commands if (refusal := apply(engine, command)) is not None]
        updates = engine.step() if engine.has_work else []
        worker.send(StepNews(rounds.take(updates), refusals, engine.status(), rounds.verdict()))
        unchecked = True


def apply(engine: EngineLike, command: Command) -> Refusal | None:
    """Carry out one command; the refusal when the engine can't take the sequence."""
    if isinstance(command, Cancel):
        engine.cancel(command.sequence_id)
    elif isinstance(command, Add):
        try:
            engine.add(command.request)
        except FieldError as error:
            return Refusal(command.request.sequence_id, str(error))
    else:
        raise RuntimeError("An engine process loads one model only.")
    return None


def load(factory: EngineFactory, worker: WorkerSocket) -> tuple[EngineLike, CanaryRounds] | None:
    """Wait for Load, carry it out and run the canary; None when it failed, which the worker has been told."""
    (command,) = worker.receive(None)
    if not isinstance(command, Load):
        raise RuntimeError("The first command must be Load.")
    try:
        engine = factory(command.path, command.options, lambda progress, phase: worker.send(Loading(progress, phase)))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        if not isinstance(error, READABLE):
            log.exception("Loading failed.")
        worker.send(Failed(sentence(error, f"{command.path} can't be loaded")))
        return None
    rounds = CanaryRounds(engine.canary, command.canary_interval)
    rounds.advance(engine)
    while engine.has_work:
        rounds.take(engine.step())
    digest, document = (engine.tokenizer.hash, engine.tokenizer.document) if engine.tokenizer else ("", b"")
    worker.send(Loaded(engine.facts, digest, document, engine.status(), rounds.verdict()))
    return engine, rounds


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


def find_factory(name: str) -> EngineFactory:
    """The callable that `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return cast(EngineFactory, attrgetter(attribute)(importlib.import_module(module)))


@click.command()
@click.option("--socket", "descriptor", type=int, required=True, help="Inherited socket to the worker.")
@click.option("--engine", default=DEFAULT_ENGINE, help="module:callable that loads the engine; tests give their own.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info")
def main(descriptor: int, engine: str, log_level: str) -> None:
    """Run one engine for a worker; started by it, not by hand."""
    signals.ignore()  # the worker decides when to end; a terminal signals the whole group
    set_up_logging(log_level, process="engine")
    with socket.socket(fileno=descriptor) as end:
        worker = WorkerSocket(end)
        raise SystemExit(run(worker, lambda *arguments: find_factory(engine)(*arguments)))


if __name__ == "__main__":
    main()
