"""One `polyfleet serve` to a state folder: two would take each other's deployments and workers for their own."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from polyfleet.cli.errors import CliError

CLAIM = "serve.lock"


@contextlib.contextmanager
def claimed(state_dir: Path) -> Iterator[None]:
    """Hold the folder, made if need be, for as long as the block lasts; however this process ends, the claim ends too.

    Raises CliError when another process holds it, or when the folder can't be written.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
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
