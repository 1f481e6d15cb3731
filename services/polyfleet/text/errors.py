"""The error of tokenizer assets that can't be used."""


class TextAssetsError(ValueError):
    """Tokenizer assets are malformed. The message is one sentence that says what is wrong with them."""
