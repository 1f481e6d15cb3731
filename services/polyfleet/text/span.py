"""How much text one token can stand for, and so how much fits into a context whatever it says."""

from collections.abc import Mapping, Sequence
from typing import Any

NFC_SHRINKS = 4  # composing characters makes text shorter by less than this
_SHRINKS = {"Prepend": 1, "NFD": 1, "NFC": NFC_SHRINKS, "ByteLevel": 1}


def max_token_bytes(definition: Mapping[str, Any]) -> int | None:
    """The most bytes of UTF-8 that one token stands for; None where there is no such bound.

    There is one for BPE over bytes, or with a token for each byte, when nothing before it leaves text out.
    """
    model, shrinks = definition.get("model") or {}, _normalizer_shrinks(definition.get("normalizer"))
    before = _flat(definition.get("pre_tokenizer"), "pretokenizers")
    byte_level = any(each.get("type") == "ByteLevel" for each in before)  # where a character stands for a byte
    bytewise = byte_level or bool(model.get("byte_fallback"))
    strips = any(token.get("lstrip") or token.get("rstrip") for token in definition.get("added_tokens") or ())
    if model.get("type") != "BPE" or not bytewise or strips or shrinks is None or not all(map(_keeps_text, before)):
        return None
    longest = max((len(piece) if byte_level else len(piece.encode()) for piece in model.get("vocab") or ()), default=1)
    added = max((len(token["content"].encode()) for token in definition.get("added_tokens") or ()), default=1)
    return max(longest, added) * shrinks


def _keeps_text(pre_tokenizer: Mapping[str, Any]) -> bool:
    kind = pre_tokenizer.get("type")
    if kind in ("Split", "Punctuation"):
        return pre_tokenizer.get("behavior") != "Removed"
    return kind in ("ByteLevel", "Digits", "Metaspace")


def _normalizer_shrinks(normalizer: Mapping[str, Any] | None) -> int | None:
    """By what factor it makes text shorter at most; None: nobody knows."""
    factor = 1
    for each in _flat(normalizer, "normalizers"):
        kind = each.get("type")
        if kind == "Replace" and _grows(each):
            continue
        if kind not in _SHRINKS:
            return None
        factor *= _SHRINKS[kind]
    return factor


def _grows(replace: Mapping[str, Any]) -> bool:
    """Whether what it puts in is no shorter than what it takes out."""
    old = (replace.get("pattern") or {}).get("String")
    return isinstance(old, str) and len(old.encode()) <= len(str(replace.get("content", "")).encode())


def _flat(part: Mapping[str, Any] | None, members: str) -> Sequence[Mapping[str, Any]]:
    """A sequence's members, or the one part itself."""
    if not part:
        return ()
    if part.get("type") != "Sequence":
        return (part,)
    return [inner for each in part.get(members) or () for inner in _flat(each, members)]
