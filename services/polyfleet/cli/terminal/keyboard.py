"""The keyboard's side of a terminal: lines with editing, and quiet while something else is shown."""

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

with suppress(ImportError):  # some builds of Python have none: lines can't be edited then
    import readline  # noqa: F401  (importing it gives `input` editing and, pasted, several lines at once)


def read_line(prompt: str) -> str:
    """A line as it was typed. The prompt goes where no answer goes: to stderr when stdout is a file.

    Raises EOFError and KeyboardInterrupt.
    """
    if sys.stdout.isatty() or not sys.stderr.isatty():
        return input(prompt)
    click.echo(prompt, nl=False, err=True)
    return input("")


@contextmanager
def quiet_keyboard() -> Iterator[None]:
    """Show nothing of what is typed within the block, and forget it: an answer must not mix with the next question."""
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # no terminal, as in a test
        yield
        return
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
