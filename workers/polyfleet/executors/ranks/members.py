"""The other ranks' processes as rank 0 has them: started, spoken to, watched, and ended together."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from polyfleet.engine.batching.parts import first_line
from polyfleet.engine.executor import DeviceTimeout
from polyfleet.executors.ranks import wire
from polyfleet.executors.ranks.board import Board
from polyfleet.executors.ranks.wire import Arrays, Message
from polyfleet.process import signals
from polyfleet.process.logs import LEVELS

log = logging.getLogger(__name__)

MODULE = "polyfleet.executors.ranks.rank"  # that they run
LOOK_SECONDS = 0.1
SILENCE_LOOKS = 50  # in a row without a beat, of which there are two a second: then a rank hangs
STUCK_LOOKS = 50  # for which a call may last on when the group is lost
SETTLE_SECONDS = 1.0  # until it shows that a rank ended
ANSWER_SECONDS = 1800.0  # that loading may take, the longest of what is asked


Answer = tuple[Message, list[NDArray[Any]]]


class RankLost(DeviceTimeout):
    """A rank of the group died or hangs: nothing more can be computed. The message is one sentence."""


class Member:
    """One other rank's process and its socket."""

    def __init__(self, rank: int, board: Board) -> None:
        self.rank = rank
        self._board = board
        mine, its = socket.socketpair()
        command = [sys.executable, "-m", MODULE, "--rank", str(rank)]
        command += ["--socket", str(its.fileno()), "--board", str(board.descriptor)]
        level = logging.getLevelName(log.getEffectiveLevel()).lower()
        command += ["--log-level", level if level in LEVELS else "warning"]
        with its, signals.held():
            self.process = subprocess.Popen(
                command, pass_fds=(its.fileno(), board.descriptor), stdin=subprocess.DEVNULL
            )
        self.socket = mine
        mine.settimeout(ANSWER_SECONDS)

    def ending(self, status: int) -> str:
        """How it ended, in words that follow its name."""
        if words := self._board.words(self.rank):
            return f"failed: {words}"
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


class Members:
    """All of them. `lost`: why the group is of no use any more; empty: it is well. `alarm` is readable then.

    A thread looks after them: one that shows no sign of life for 5 s is killed, which breaks what others wait for.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.lost = ""
        self.board = Board.create(size)
        self.alarm, self._ring = os.pipe()
        self.calling = False  # whether rank 0 computes, and so may wait for others
        self._closing = threading.Event()
        self._members = [Member(rank, self.board) for rank in range(1, size)]
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    @property
    def pids(self) -> list[int]:
        """Their process ids, by rank from 1 on."""
        return [each.process.pid for each in self._members]

    def make_room(self, room: int) -> None:
        """Have room for plans of so many int32s, and forget what was posted."""
        self.board = Board(self.board.descriptor, self.size, room)
        for member in self._members:
            member._board = self.board

    def wake(self) -> None:
        """Tell all that a plan is posted."""
        for member in self._members:
            try:
                member.socket.sendall(wire.PLAN)
            except OSError:
                raise self.why() from None

    def tell(self, message: Message, arrays: Sequence[Arrays] = ()) -> None:
        """Send all a message, each with arrays of its own."""
        for at, member in enumerate(self._members):
            try:
                wire.send(member.socket, message, arrays[at] if arrays else ())
            except OSError:
                raise self.why() from None

    def answers(self) -> list[Answer]:
        """Of each what it answers to the last message. Raises what it reports, ValueError or MemoryError."""
        found = []
        for member in self._members:
            try:
                if wire.receive_kind(member.socket) != wire.MESSAGE:
                    raise EOFError
                answer, arrays = wire.receive(member.socket)
            except (OSError, EOFError):
                raise self.why() from None
            if error := answer.get("error"):
                kind = MemoryError if answer.get("memory") else ValueError
                raise kind(f"rank {member.rank} of {self.size}: {error}")
            found.append((answer, arrays))
        return found

    def check(self) -> None:
        """Raise RankLost where the group is lost."""
        if self.lost:
            raise RankLost(self.lost)

    def why(self) -> RankLost:
        """What is to be raised where another rank does not answer, once it is known."""
        return self.broken(RuntimeError("the ranks are out of step"))

    def broken(self, error: Exception) -> RankLost:
        """What is to be raised where rank 0 failed: that another rank is lost if this soon shows, else the error."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while not self.lost and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 10)
        self.fail(f"rank 0 of {self.size} failed: {first_line(error)}")
        return RankLost(self.lost)

    def fail(self, reason: str) -> None:
        """Give the group up."""
        if not self.lost:
            self.lost = reason
            os.write(self._ring, b"!")
            for member in self._members:
                member.process.kill()

    def close(self) -> None:
        """End all processes."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        for member in self._members:
            member.socket.close()
            try:
                member.process.wait(2.0 if not self.lost else 0.0)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
        for descriptor in (self.alarm, self._ring, self.board.descriptor):
            os.close(descriptor)

    def _watch(self) -> None:
        beats, silent, stuck = self.board.beats.copy(), [0] * self.size, 0
        while not self._closing.wait(LOOK_SECONDS):
            for member in self._members:
                status = member.process.poll()
                if status is not None:
                    self.fail(f"rank {member.rank} of {self.size} {member.ending(status)}")
                    continue
                silent[member.rank] += 1
                if beats[member.rank] != self.board.beats[member.rank]:
                    silent[member.rank] = 0
                if silent[member.rank] >= SILENCE_LOOKS and beats[member.rank]:
                    seconds = SILENCE_LOOKS * LOOK_SECONDS
                    self.fail(f"rank {member.rank} of {self.size} showed no sign of life for {seconds:g} s")
            beats = self.board.beats.copy()
            stuck = stuck + 1 if self.lost and self.calling else 0
            if stuck >= STUCK_LOOKS:
                log.critical("%s, and a call that waits for it does not end: the process ends", self.lost)
                os._exit(1)
