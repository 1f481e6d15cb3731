"""Making TokenizerAssets: the canonical document and the checks that both kinds of source share."""

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from polyfleet.loading.model import TokenizerAssets


def make_assets(
    *,
    tokenizer: dict[str, Any],
    chat_template: str | None,
    bos_token: str | None,
    eos_token: str | None,
    add_bos: bool,
    end_token_ids: Iterable[int],
) -> TokenizerAssets:
    """Write the document of docs/models.md: JSON with sorted keys and no spaces, so that equal assets hash alike."""
    content = {
        "tokenizer": tokenizer,
        "chat_template": chat_template,
        "bos_token": bos_token,
        "eos_token": eos_token,
        "add_bos": add_bos and bos_token is not None,
        "end_token_ids": list(end_token_ids),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    document = text.encode("utf-8")
    return TokenizerAssets(sha256(document).hexdigest(), document)
