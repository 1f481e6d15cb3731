"""Images that a user shows: files become parts of a turn."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from polyfleet.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from polyfleet.client import Image, Message


def read_image(path: Path) -> "Image":
    """An image file's bytes. Raises CliError."""
    from polyfleet.client import Image

    try:
        return Image(path.expanduser().read_bytes())
    except OSError as error:
        raise CliError(f"{path} can't be read: {error.strerror}.", ExitCode.BAD_INPUT) from None


def with_images(text: str, paths: Iterable[Path]) -> "Message":
    """A user's turn that shows these files, and then says a text. Raises CliError."""
    from polyfleet.client import Message

    return Message("user", (*map(read_image, paths), text))
