"""Tokenizers of encoders in GGUF files: BERT's WordPiece, and Unigram, which GGUF calls t5. As JSON of `tokenizers`."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from polyfleet.loading.gguf.vocabulary import PREFIX, Vocabulary, finite_numbers
from polyfleet.loading.tokenizer.post_processor import Frame
from polyfleet.models.fields import Fields

SPACE = "▁"
PLACES: Mapping[str, tuple[tuple[str, str, int], tuple[str, str, int]]] = {  # of what stands before and behind a text:
    "bert": (("cls_token", "bos_token", 101), ("sep_token", "eos_token", 102)),  # two names, and where none is stated
    "t5": (("bos_token", "cls_token", -1), ("eos_token", "sep_token", 1)),
}
Parts = dict[str, Any]  # model, normalizer, pre_tokenizer, decoder


def wordpiece(fields: Fields, vocabulary: Vocabulary) -> Parts:
    """Words begin with a phantom space in the file, and have none here; what goes on with a word is marked here."""
    lowercase = fields.flag(PREFIX + "normalizer.lowercase", True)
    key = PREFIX + "normalizer.strip_accents"
    accents = fields.flag(key, lowercase) if fields.has(key) else None
    unknown = vocabulary.tokens[vocabulary.special.get("unk_token", min(100, len(vocabulary.tokens) - 1))]
    ids = {_word(token): token_id for token_id, token in enumerate(vocabulary.tokens)}
    return {
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": accents,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    }


def unigram(fields: Fields, vocabulary: Vocabulary) -> Parts:
    """SentencePiece's other kind: pieces that are likeliest together."""
    scores = finite_numbers(fields, PREFIX + "scores", len(vocabulary.tokens))
    pieces = [[token, float(score)] for token, score in zip(vocabulary.tokens, scores, strict=True)]
    steps: list[dict[str, Any]] = []
    if charsmap := _charsmap(fields):
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if fields.flag(PREFIX + "remove_extra_whitespaces", False):
        steps += [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    scheme = "always" if fields.flag(PREFIX + "add_space_prefix", True) else "never"
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    return {
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.special.get("unk_token", 0),
            "vocab": pieces,
            "byte_fallback": False,
        },
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": space,
        "decoder": space,
    }


def encoder_frame(fields: Fields, vocabulary: Vocabulary, kind: str) -> tuple[bool, Frame]:
    """Whether the beginning is BOS, and what else stands around a text."""
    sides: list[tuple[int, ...]] = []
    for key, (name, other, default) in zip(("add_bos_token", "add_eos_token"), PLACES[kind], strict=True):
        found = vocabulary.special.get(name, vocabulary.special.get(other, default))
        wanted = fields.flag(PREFIX + key, True) and 0 <= found < len(vocabulary.tokens)
        sides.append((found,) if wanted else ())
    return False, Frame(*sides)


def _word(token: str) -> str:
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[1:] if token.startswith(SPACE) else f"##{token}"


def _charsmap(fields: Fields) -> str:
    """In base64, as tokenizer.json has it; "" for none."""
    key = PREFIX + "precompiled_charsmap"
    if not fields.has(key):
        return ""
    numbers = fields.items(key)
    if not all(isinstance(each, int) and -128 <= each < 256 for each in numbers):
        raise fields.error(f"{key} must hold bytes")
    return b64encode(bytes(each & 255 for each in numbers)).decode()
