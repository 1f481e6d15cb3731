"""Whether a tokenizer.json is one that the gateway's `tokenizers` library can read as it is meant."""

from collections.abc import Iterable, Mapping
from typing import Any

from polyfleet.models.fields import Fields

MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")
# Part -> its key for a sequence's members, and its types.
PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "normalizer": (
        "normalizers",
        (
            "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend",
            "Replace", "Strip", "StripAccents",
        ),
    ),
    "pre_tokenizer": (
        "pretokenizers",
        (
            "BertPreTokenizer", "ByteLevel", "Digits", "FixedLength", "Metaspace", "Punctuation", "Split",
            "UnicodeScripts", "Whitespace", "WhitespaceSplit",
        ),
    ),
    "decoder": (
        "decoders",
        ("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"),
    ),
}  # fmt: skip


def check_parts(tokenizer: Fields) -> None:
    """Raise ModelFileError for a part of a kind that is not known."""
    kind = tokenizer.section("model").text("type", "BPE")
    if kind not in MODELS:
        raise tokenizer.error(f"the tokenizer model {kind!r} is not supported (supported: {', '.join(MODELS)})")
    for part in PARTS:
        if tokenizer.has(part):
            _check_part(part, tokenizer.section(part))


def read_vocabulary(tokenizer: Fields) -> dict[str, int]:
    """The model's own tokens and their ids; raises ModelFileError, for merges of others too."""
    vocabulary = tokenizer.section("model").values.get("vocab")
    if isinstance(vocabulary, list) and all(isinstance(piece, list) and piece for piece in vocabulary):
        vocabulary = {piece[0]: token_id for token_id, piece in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict) or not vocabulary or not all(isinstance(text, str) for text in vocabulary):
        raise tokenizer.error("model.vocab must hold the vocabulary")
    _check_ids(tokenizer, vocabulary.values())
    _check_merges(tokenizer, vocabulary)
    return vocabulary


def read_added(tokenizer: Fields) -> list[dict[str, Any]]:
    """The entries of `added_tokens`; raises ModelFileError."""
    added = tokenizer.items("added_tokens") if tokenizer.has("added_tokens") else []
    if not all(isinstance(each, dict) and isinstance(each.get("content"), str) for each in added):
        raise tokenizer.error("added_tokens must be a list of objects with id and content")
    _check_ids(tokenizer, (each.get("id") for each in added))
    return added


def check_added(tokenizer: Fields, added: list[dict[str, Any]], vocabulary: Mapping[str, int], size: int) -> None:
    """Raise ModelFileError for ids that the library would not give, or that the model of `size` tokens has not."""
    largest = max([*vocabulary.values(), *(token["id"] for token in added)])
    if largest >= size:
        raise tokenizer.error(f"token id {largest} is outside the model's vocabulary of {size}")
    following = len(vocabulary)  # the library numbers tokens that the vocabulary lacks from here, whatever they say
    for token in added:
        content, token_id = token["content"], token["id"]
        given = vocabulary.get(content, following)
        following += content not in vocabulary
        if token_id != given:
            raise tokenizer.error(f"the added token {content!r} has the id {token_id} where {given} would be its place")


def _check_merges(tokenizer: Fields, vocabulary: Mapping[str, int]) -> None:
    """Raise ModelFileError for a merge of tokens that are none, or to one that is none: the library refuses it."""
    model = tokenizer.section("model")
    if model.text("type", "BPE") != "BPE" or not model.has("merges"):
        return
    prefix = model.text("continuing_subword_prefix", "") if model.has("continuing_subword_prefix") else ""
    for merge in model.items("merges"):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(each, str) for each in parts):
            raise model.error(f"merges holds {merge!r:.80}, which is no pair of tokens")
        first, second = parts
        if not {first, second, first + second.removeprefix(prefix)} <= vocabulary.keys():
            raise model.error(f"merges holds {merge!r:.80}, which joins no two tokens into a third")


def _check_part(part: str, section: Fields) -> None:
    members, kinds = PARTS[part]
    kind = section.text("type")
    if kind == "Sequence":
        for member in section.sections(members):
            _check_part(part, member)
    elif kind not in kinds:
        raise section.error(f"the type {kind!r} is not supported (supported: {', '.join(kinds)}, Sequence)")


def _check_ids(tokenizer: Fields, ids: Iterable[Any]) -> None:
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in ids):
        raise tokenizer.error("token ids must be whole numbers from 0")
