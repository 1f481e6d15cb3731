"""The error of tokenizer assets that can't be used."""

from polyfleet.wire.limits import FieldError


class TextAssetsError(ValueError):
    """Tokenizer assets are malformed. The message is one sentence that says what is wrong with them."""


def check_unicode(field: str, text: str) -> None:
    """Raise FieldError for a text that holds half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FieldError(field, "holds half a surrogate pair, which is no Unicode text") from None
