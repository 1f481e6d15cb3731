"""The tokenizer assets document: read, checked, and made into a tokenizer."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from tokenizers import Tokenizer

from polyfleet.text.errors import TextAssetsError


class _Assets(msgspec.Struct):
    """The kinds of what a document may state. What is within an object has its own readers."""

    tokenizer: dict[str, Any]
    chat_template: str | None = None
    tool_template: str | None = None
    pair_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    add_bos: bool | None = None
    end_token_ids: list[int] | None = None
    special_tokens: dict[str, str | list[str]] | None = None
    sampling_defaults: dict[str, Any] | None = None
    images: dict[str, Any] | None = None


def parse_assets(document: bytes) -> dict[str, Any]:
    """The document's keys, `tokenizer` among them for sure, each of its kind. Raises TextAssetsError."""
    try:
        assets: dict[str, Any] = json.loads(document)
        msgspec.convert(assets, _Assets)
    except msgspec.ValidationError as error:
        raise TextAssetsError(f"The tokenizer assets are refused: {error}.") from None
    except (ValueError, RecursionError) as error:
        raise TextAssetsError(f"The tokenizer assets are not JSON: {error}.") from None
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


def patterns(part: Any) -> Iterator[str]:
    """Every regular expression in a part of such an object."""
    if isinstance(part, Mapping):
        if isinstance(pattern := part.get("Regex"), str):
            yield pattern
        part = list(part.values())
    for each in part if isinstance(part, list) else ():
        yield from patterns(each)
