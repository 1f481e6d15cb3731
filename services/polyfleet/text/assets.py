"""The tokenizer assets document: read, checked, and made into a tokenizer."""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from polyfleet.text.errors import TextAssetsError


def parse_assets(document: bytes) -> dict[str, Any]:
    """The document's keys, `tokenizer` among them for sure. Raises TextAssetsError."""
    try:
        assets = json.loads(document)
    except ValueError as error:
        raise TextAssetsError(f"The tokenizer assets are not JSON: {error}.") from None
    if not isinstance(assets, dict) or not isinstance(assets.get("tokenizer"), dict):
        raise TextAssetsError("The tokenizer assets have no object `tokenizer`.")
    return assets


def make_tokenizer(definition: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a `tokenizers` JSON object; it neither pads nor truncates. Raises TextAssetsError."""
    try:
        tokenizer = Tokenizer.from_str(json.dumps(definition))
    except Exception as error:  # the library raises bare Exception
        raise TextAssetsError(f"The tokenizer assets are refused: {error}.") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
