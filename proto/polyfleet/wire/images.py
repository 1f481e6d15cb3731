"""Images: as clients send them, and as sequences have them."""

from dataclasses import dataclass
from hashlib import blake2b

MAX_IMAGES = 16  # of a request
MAX_PIXEL_BYTES = 48 * 1024 * 1024  # of all crops of a request, as they travel to a worker
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Image:
    """A part of a message's content: the bytes of a PNG, JPEG, WebP or other file."""

    data: bytes = b""


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
