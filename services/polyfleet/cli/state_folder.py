"""What `polyfleet serve` keeps in its state folder for itself: the claim on the folder, and the fleet token.

One `polyfleet serve` to a folder: two would take each other's deployments and workers for their own.
"""

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from polyfleet.cli.errors import CliError
from polyfleet.scheduler.config import default_state_dir
from polyfleet.wire.auth import AuthSetupError, is_loopback, read_token, split_host_port

CLAIM = "serve.lock"
TOKEN = "fleet.token"
TOKENS = "tokens"  # in the default state folder: by port of a Fleet on this machine, a link to its token file


@contextlib.contextmanager
def claimed(state_dir: Path) -> Iterator[None]:
    """Hold the folder, made if need be, for as long as the block lasts; however this process ends, the claim ends too.

    Raises CliError when another process holds it, or when the folder can't be written.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        claim = (state_dir / CLAIM).open("a")
    except OSError as error:
        raise CliError(f"{state_dir}, wanted for state, can't be had: {error.strerror}.") from None
    with claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = (
                f"{state_dir} is in use by another `polyfleet serve`: stop that one, or choose another --state-dir."
            )
            raise CliError(message) from None
        yield


def made_token(state_dir: Path) -> Path:
    """The folder's file with the fleet token, which only this user can read; made unless there is such a one.

    Raises CliError when it can't be written.
    """
    path = state_dir / TOKEN
    with contextlib.suppress(OSError, AuthSetupError):
        if _is_private(path.lstat()) and read_token(path):
            return path
    try:
        descriptor, fresh = tempfile.mkstemp(dir=state_dir, prefix=f".{TOKEN}.")  # mode 0600
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(32) + "\n")
        os.replace(fresh, path)
    except OSError as error:
        raise CliError(f"{path}, wanted for the fleet token, can't be written: {error.strerror}.") from None
    return path


def _is_private(found: os.stat_result) -> bool:
    """Whether it is a file of this user's that nobody else may touch."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@contextlib.contextmanager
def published(fleet: str, token_file: Path) -> Iterator[None]:
    """Let this user's other commands find the token of the Fleet at `fleet`, for as long as the block lasts.

    Where the default state folder can't be written they have to be told; nothing else is lost.
    """
    link, ours = _link(fleet), False
    with contextlib.ExitStack() as exits:
        with contextlib.suppress(OSError):
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            alive = exits.enter_context(_alive(link).open("a"))
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            link.unlink(missing_ok=True)
            link.symlink_to(token_file.absolute())
            ours = True
        try:
            yield
        finally:
            for path in (link, _alive(link)) if ours else ():
                with contextlib.suppress(OSError):
                    path.unlink()


def known_token(fleet: str) -> Path | None:
    """The file with the token of the Fleet at `fleet`, when this user's `polyfleet serve` runs it on this machine.

    What a killed one left behind counts for nothing: whoever has its port now must not be shown the token.
    """
    link = _link(fleet)
    if not is_loopback(fleet) or not link.is_file():
        return None
    try:
        with _alive(link).open() as alive:
            fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        return link
    except OSError:
        return None


def _alive(link: Path) -> Path:
    """A file that is locked for as long as the link is true; however its process ends, the lock ends too."""
    return link.with_name(f"{link.name}.lock")


def _link(fleet: str) -> Path:
    return default_state_dir() / TOKENS / split_host_port(fleet)[1]
