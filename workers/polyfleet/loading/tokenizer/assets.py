"""Making TokenizerAssets: the canonical document that both kinds of source share."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from polyfleet.loading.model import ImageSettings, TokenizerAssets

SpecialTokens = Mapping[str, str | list[str]]  # `unk_token` and the like, as a chat template names them -> text


def make_assets(
    *,
    tokenizer: dict[str, Any],
    chat_template: str | None,
    special_tokens: SpecialTokens,
    add_bos: bool,
    end_token_ids: Iterable[int],
    sampling_defaults: Mapping[str, float],
    tool_template: str | None = None,
    images: ImageSettings | None = None,
    pair_template: str = "",
) -> TokenizerAssets:
    """Write the document of docs/models.md: JSON with sorted keys and no spaces, so that equal assets hash alike."""
    bos_token = special_tokens.get("bos_token")
    content: dict[str, Any] = {
        "tokenizer": tokenizer,
        "chat_template": chat_template,
        "bos_token": bos_token,
        "eos_token": special_tokens.get("eos_token"),
        "special_tokens": special_tokens,
        "add_bos": add_bos and bos_token is not None,
        "end_token_ids": list(end_token_ids),
        "sampling_defaults": sampling_defaults,
    }
    if tool_template is not None:
        content["tool_template"] = tool_template
    if pair_template:
        content["pair_template"] = pair_template
    if images is not None:
        content["images"] = images
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    document = text.encode("utf-8")
    return TokenizerAssets(sha256(document).hexdigest(), document)
