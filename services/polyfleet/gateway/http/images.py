"""Images in bodies: bytes as base64, alone or in a data URL. Pure; what they hold is looked at later."""

import base64
import re

from polyfleet.wire.images import Image
from polyfleet.wire.limits import FieldError

_DATA = re.compile(r"data:([\w.+/-]*)(?:;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)
WANTED = "must be a data URL, data:image/png;base64,…"


def image_of_url(url: str | None, path: str) -> Image:
    """The image in a data URL. Raises FieldError, for other URLs too: this server fetches nothing for its clients."""
    if not url:
        raise FieldError(path, "is missing")
    found = _DATA.match(url)
    if found is None:
        fetched = ": this server fetches no images" if re.match(r"(https?|ftp|file):", url, re.IGNORECASE) else ""
        raise FieldError(path, WANTED + fetched)
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
