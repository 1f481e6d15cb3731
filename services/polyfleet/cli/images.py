"""Images that a user shows: files and URLs become parts of a turn."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from polyfleet.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from polyfleet.client import Image, Message


def is_url(source: str) -> bool:
    """Whether the gateway is to fetch it."""
    return source.lower().startswith(("https://", "http://"))


def read_image(source: str) -> "Image":
    """An image's URL, or a file's bytes. Raises CliError."""
    from polyfleet.client import Image

    if is_url(source):
        return Image(url=source)
    try:
        return Image(Path(source).expanduser().read_bytes())
    except OSError as error:
        raise CliError(f"{source} can't be read: {error.strerror}.", ExitCode.BAD_INPUT) from None


def with_images(text: str, sources: Iterable[str]) -> "Message":
    """A user's turn that shows these files and URLs, and then says a text. Raises CliError."""
    from polyfleet.client import Message

    return Message("user", (*map(read_image, sources), text))
