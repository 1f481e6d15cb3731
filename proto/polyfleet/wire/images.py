"""Images: as clients send them, and as sequences have them."""

import base64
import re
from dataclasses import dataclass
from hashlib import blake2b

from polyfleet.wire.limits import FieldError

MAX_IMAGES = 16  # of a request
MAX_PIXEL_BYTES = 48 * 1024 * 1024  # of all crops of a request, as they travel to a worker
DIGEST_BYTES = 16
_DATA = re.compile(r"data:([\w.+/-]*)(?:;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)
_FETCHED = re.compile(r"https?:", re.IGNORECASE)
WANTED = "must be a URL of https or http, or a data URL, data:image/png;base64,…"


@dataclass(frozen=True, slots=True)
class Image:
    """A part of a message's content: the bytes of a PNG, JPEG, WebP or other file, or the URL where it is."""

    data: bytes = b""
    url: str = ""


@dataclass(frozen=True, slots=True)
class SequenceImage:
    """One image, ready to be seen: its crops, each row after row, with a byte for each of red, green and blue.

    `digest` names it: images of one digest are the same.
    """

    pixels: bytes
    digest: bytes

    @classmethod
    def of(cls, pixels: bytes) -> "SequenceImage":
        """With the digest of its pixels."""
        return cls(pixels, blake2b(pixels, digest_size=DIGEST_BYTES, person=b"image").digest())


def image_of_url(url: str | None, path: str) -> Image:
    """The image in a data URL, or at another one, which is fetched later. Raises FieldError."""
    if not url:
        raise FieldError(path, "is missing")
    if _FETCHED.match(url):
        return Image(url=url)
    found = _DATA.match(url)
    if found is None:
        raise FieldError(path, WANTED)
    if found[1] and not found[1].lower().startswith("image/"):
        raise FieldError(path, f"must be of an image, not of {found[1]:.40}")
    return image_of_base64(url[found.end() :], path)


def image_of_base64(text: str, path: str) -> Image:
    """The image in base64, with or without line breaks. Raises FieldError."""
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise FieldError(path, f"is no valid base64 ({error})") from None
    if not data:
        raise FieldError(path, "must not be empty")
    return Image(data)
