"""Images of a chat: decoded, cut into the crops that the model sees, and spelled in its prompt.

Files come from anybody: they are decoded in the process of `polyfleet.text.process`, within its time and memory.
"""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from polyfleet.text.errors import TextAssetsError
from polyfleet.wire.limits import FieldError

if TYPE_CHECKING:
    from PIL.Image import Image

Grid = tuple[int, int]  # rows and columns of the crops that an image is cut into; 0 of both: it is not cut
SEES_NONE = "show images, but this model sees none"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
ENDS = {"PNG": rb"IEND\xaeB`\x82", "GIF": rb"\0;[\0\r\n]*\Z"}  # patterns of what Pillow does without
MAX_PIXELS = 25_000_000
MAX_EDGE = 4096  # of what crops are cut from
BITS_OF_BYTE = 1 / 256  # from 16 bits a channel to 8


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """`images` of the tokenizer assets (docs/models.md)."""

    side: int  # pixels of a crop
    longest_edge: int  # pixels of an image before it is cut
    split: bool  # whether it is cut
    resample: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
    rows: int  # tokens of a crop
    token_id: int
    token: str  # stands for a row, and in the chat template for an image
    around: str  # stands before each crop, and behind the last
    whole: str  # says that a crop is the whole image

    @classmethod
    def of(cls, assets: Mapping[str, Any]) -> "ImageSettings | None":
        """Those of a model that sees images; None: it sees none. Raises TextAssetsError."""
        stated = assets.get("images")
        if stated is None:
            return None
        try:
            settings = msgspec.convert(stated, cls)
        except msgspec.ValidationError as error:
            raise TextAssetsError(f"The tokenizer assets' images are refused: {error}.") from None
        if not 0 < settings.side <= settings.longest_edge <= MAX_EDGE or not 0 < settings.rows <= settings.side**2:
            raise TextAssetsError("The tokenizer assets' images have sizes that are out of range.")
        return settings

    def spelled(self, grid: Grid) -> str:
        """An image in a prompt."""
        crop, (rows, columns) = self.token * self.rows, grid
        last = f"{self.around}{self.whole}{crop}{self.around}"
        if not rows:
            return last
        parts = (
            "".join(f"{self.around}<row_{row + 1}_col_{column + 1}>{crop}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        return "".join(parts) + "\n" + last


def prepare(data: bytes, settings: ImageSettings) -> tuple[Grid, bytes]:
    """How an image is cut, and the pixels of all crops, the whole image last.

    Raises FieldError, without a field, for what is no still image of a known kind.
    """
    image = _decoded(data)
    image = _resized(image, _of_longest_edge(image.size, settings.longest_edge), settings)
    side = settings.side
    if not settings.split:
        return (0, 0), _resized(image, (side, side), settings).tobytes()
    image = _resized(image, _of_multiples(image.size, side), settings)
    columns, rows = image.width // side, image.height // side
    if (rows, columns) == (1, 1):
        return (0, 0), image.tobytes()
    crops = [image.crop(box).tobytes() for box in _boxes(rows, columns, side)]
    return (rows, columns), b"".join((*crops, _resized(image, (side, side), settings).tobytes()))


def _decoded(data: bytes) -> "Image":
    """In RGB, 8 bits a channel, the right way up. Raises FieldError."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # its own limit, above which it warns; ours is lower
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise FieldError("", f"is no image of a kind that is read: {', '.join(FORMATS)}") from None
    except Exception as error:  # decoders raise whatever they come upon
        raise _corrupt(error) from None
    if image.width * image.height > MAX_PIXELS:
        size = f"{image.width} x {image.height}"
        raise FieldError("", f"has {size} pixels, but images may have {MAX_PIXELS:,} at most")
    try:
        if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
            raise FieldError("", "is animated or has several pages: send one picture of it")
        image.load()
        if not re.search(ENDS.get(image.format or "", b""), data):
            raise FieldError("", "is a truncated image: its end is missing")
        return _rgb(ImageOps.exif_transpose(image))
    except (FieldError, MemoryError):
        raise
    except Exception as error:
        raise _corrupt(error) from None


def _corrupt(error: Exception) -> FieldError:
    return FieldError("", f"is a truncated or corrupt image ({str(error)[:100]})")


def _rgb(image: "Image") -> "Image":
    """Transparency is dropped, as models were trained."""
    if image.mode == "F":
        raise FieldError("", "has numbers with fractions for pixels, which is not supported")
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value * BITS_OF_BYTE).convert("L")
    return image if image.mode == "RGB" else image.convert("RGB")


def _resized(image: "Image", size: tuple[int, int], settings: ImageSettings) -> "Image":
    from PIL.Image import Resampling

    return image.resize(size, Resampling[settings.resample.upper()])


def _of_longest_edge(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Width and height of the same shape with this longest edge, the shorter one even."""
    wide, ratio = size[0] >= size[1], size[0] / size[1]
    short = int(longest / ratio) if wide else int(longest * ratio)
    short = max(short + short % 2, 1)
    return (longest, short) if wide else (short, longest)


def _of_multiples(size: tuple[int, int], side: int) -> tuple[int, int]:
    """The least multiples of `side` for the longer edge, and for the shorter one that goes with it."""
    wide, ratio = size[0] >= size[1], size[0] / size[1]
    long = -(-max(size) // side) * side
    short = -(-int(long / ratio if wide else long * ratio) // side) * side
    return (long, short) if wide else (short, long)


def _boxes(rows: int, columns: int, side: int) -> Iterator[tuple[int, int, int, int]]:
    for top in range(0, rows * side, side):
        for left in range(0, columns * side, side):
            yield left, top, left + side, top + side
