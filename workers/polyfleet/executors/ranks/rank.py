"""A rank's process beside rank 0's: `python -m polyfleet.executors.ranks.rank`, started by it alone.

It loads its part of the model, computes each plan that is posted, and ends with rank 0, or when it fails.
"""

import argparse
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING

from polyfleet.executors.ranks import wire
from polyfleet.executors.ranks.board import Board, Plans
from polyfleet.process import signals
from polyfleet.process.logs import LEVELS, set_up_logging

if TYPE_CHECKING:
    from polyfleet.engine.executor import Executor
    from polyfleet.graph.shard import Shard

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--socket", "--board"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--log-level", choices=LEVELS, default="warning")
    given = parser.parse_args()
    set_up_logging(given.log_level, process=f"rank {given.rank}")
    signals.ignore()  # rank 0 decides when to end
    die_with_parent()
    end = socket.socket(fileno=given.socket)
    wire.receive_kind(end)
    start, _ = wire.receive(end)
    board = Board(given.board, start["size"], 0)
    import_module("torch")  # while its libraries are loaded no other thread runs: before there is a beat to miss
    threading.Thread(target=beat, args=(board, given.rank), daemon=True).start()
    try:
        Rank(end, board, given.rank, start["size"], *prepare(end, board, start, given.rank)).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # rank 0 has gone; whatever still waits for it is of no use
    except BaseException as error:
        board.say(given.rank, f"{type(error).__name__}: {error}".partition("\n")[0])
        log.exception("rank %d failed", given.rank)
        os._exit(1)


def die_with_parent() -> None:
    """Have the kernel end this process with the thread that started it, also while it is stopped. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def beat(board: Board, rank: int) -> None:
    """Show that this process lives."""
    while True:
        board.beats[rank] += 1
        time.sleep(BEAT_SECONDS)


def prepare(end: socket.socket, board: Board, start: wire.Message, rank: int) -> tuple["Executor", int, "Shard"]:
    """Join the group and build what this rank computes with; what can't be is said, and ends the process.

    With it come the bytes that were free before, and its part of the model.
    """
    try:
        found = build(end, start, rank)
    except (ValueError, RuntimeError, MemoryError) as error:  # a BackendUnavailable is a RuntimeError
        memory = isinstance(error, MemoryError)
        if not isinstance(error, ValueError):
            log.exception("rank %d can't compute its part", rank)
        words = str(error).partition("\n")[0] or type(error).__name__
        board.say(rank, words)  # for rank 0 may wait elsewhere than for the answer
        wire.send(end, {"error": words, "memory": memory})
        os._exit(1)
    wire.send(end, {})
    return found


def build(end: socket.socket, start: wire.Message, rank: int) -> tuple["Executor", int, "Shard"]:
    """As rank 0 does."""
    import torch

    from polyfleet.engine.choosing.executors import Workload, find
    from polyfleet.engine.choosing.machines import open_machine
    from polyfleet.executors.ranks.collectives import DistributedRanks
    from polyfleet.executors.ranks.parts import keeping
    from polyfleet.graph.shard import Shard, shard
    from polyfleet.loading.load import load_model
    from polyfleet.loading.placing import Keep
    from polyfleet.loading.shapes import check_numbers
    from polyfleet.models.config import ModelConfig
    from polyfleet.models.registry import recorded
    from polyfleet.wire.options import EngineOptions

    size, options = start["size"], EngineOptions(**start["options"])
    machine, capabilities = open_machine(start["devices"][rank])
    wire.send(end, {})
    meeting = (start["backend"], start["store"], rank, size, torch.device(machine.device))
    ranks = DistributedRanks(*meeting, peer_memory=capabilities.peer_memory)
    mine: list[Shard] = []

    def keep_mine(config: ModelConfig) -> Keep:
        mine[:] = [shard(recorded(config.served(options.context_length))[0], rank, size)]
        return keeping(mine[0])

    weights = load_model(start["path"], numbers=False, keeping=keep_mine).weights
    workload = Workload(mine[0].graph, weights, options, machine.device, start["dtype"], capabilities, ranks=ranks)
    check_numbers(start["path"], weights)
    executor = find("rank", start["target"]).build(workload, lambda share: None)
    return executor, machine.free_bytes, mine[0]


class Rank:
    """Does what rank 0 says. What fails in it ends the process, and so the group, unless nobody waits for it."""

    def __init__(
        self,
        end: socket.socket,
        board: Board,
        rank: int,
        size: int,
        executor: "Executor",
        free_bytes: int,
        shard: "Shard",
    ) -> None:
        self._end, self._board, self._rank, self._size, self._shard = end, board, rank, size, shard
        self._executor, self._free_bytes = executor, free_bytes
        self._plans = Plans(1, 1)

    def run(self) -> None:
        """For ever."""
        while True:
            if wire.receive_kind(self._end) == wire.PLAN:
                self._step()
            else:
                self._obey(*wire.receive(self._end))

    def _step(self) -> None:
        pending = self._executor.launch(self._plans.unpack(self._board.take(self._rank)))
        if self._executor.depth > 1:  # else the tokens come with the next plan
            self._executor.draw(pending)

    def _obey(self, message: wire.Message, arrays: wire.Arrays) -> None:
        from polyfleet.engine.executor import Capacity

        if message["do"] == "measure":
            measured = asdict(self._executor.measure())
            wire.send(self._end, {"footprint": measured, "free_bytes": self._free_bytes})
        elif message["do"] == "allocate":
            capacity = Capacity(**message["capacity"])
            self._board = Board(self._board.descriptor, self._size, message["room"])
            self._board.taken[self._rank] = 0
            self._plans = Plans(capacity.max_sequences, capacity.table_width)
            self._executor.allocate(capacity)
            wire.send(self._end, {})
        else:
            self._exchange(message, arrays)

    def _exchange(self, message: wire.Message, arrays: wire.Arrays) -> None:
        try:
            local = filter(None, (message.get("local"),))
            if message["do"] == "adapter":
                self._set_adapter(message, arrays)
                wire.send(self._end, {})
            elif message["do"] == "export":
                wire.send(self._end, {}, self._executor.export_blocks(message["blocks"], *local))
            else:
                self._executor.import_blocks(message["blocks"], arrays, *local)
                wire.send(self._end, {})
        except (ValueError, MemoryError) as error:
            wire.send(self._end, {"error": str(error), "memory": isinstance(error, MemoryError)})

    def _set_adapter(self, message: wire.Message, arrays: wire.Arrays) -> None:
        import torch

        from polyfleet.executors.ranks.parts import adapter_of
        from polyfleet.kernels.adapters import LowRank

        matrices = [torch.from_numpy(each) for each in arrays]
        pairs = map(LowRank, matrices[::2], matrices[1::2])
        parts = dict(zip(message["names"], pairs, strict=True))
        self._executor.set_adapter(message["number"], adapter_of(self._shard, parts))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
