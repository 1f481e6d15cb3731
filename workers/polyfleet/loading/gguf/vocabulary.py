"""A GGUF file's vocabulary: tokens, their kinds, and which of them are special."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from polyfleet.loading.tokenizer.end_tokens import TURN_ENDS, spelled_end_tokens, union
from polyfleet.models.fields import Fields

PREFIX = "tokenizer.ggml."
END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id", "eos_token_ids", "eog_token_ids")
SPECIAL_KEYS: Mapping[str, str] = {  # as chat templates name them -> as GGUF does
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
    "eot_token": "eot_token_id",
    "eom_token": "eom_token_id",
}
AROUND = ("bos_token", "eos_token", "eot_token", "eom_token")  # no text that a model was trained on has them in it
NEEDED = ("bos_token", "eos_token")
UNSTATED: Mapping[str, int] = {"bos_token": 1, "eos_token": 2, "unk_token": 0}  # of `llama` vocabularies, as llama.cpp


class TokenType(IntEnum):
    """GGUF's kinds of tokens."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


WHOLE = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)  # matched before any splitting


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in the order of ids with their kinds, and the special ones by name."""

    tokens: list[str]
    types: list[int]
    special: Mapping[str, int]

    @property
    def special_texts(self) -> dict[str, str | list[str]]:
        """Name -> text."""
        return {name: self.tokens[token_id] for name, token_id in self.special.items()}


def read_vocabulary(fields: Fields, vocabulary_size: int) -> Vocabulary:
    """Raises ModelFileError for one that is broken."""
    tokens = _tokens(fields, vocabulary_size)
    types = _types(fields, tokens)
    special = _special(fields, types)
    for token_id in (special[name] for name in AROUND if name in special):
        types[token_id] = TokenType.CONTROL if types[token_id] == TokenType.NORMAL else types[token_id]
    return Vocabulary(tokens, types, special)


def gguf_end_tokens(fields: Fields) -> tuple[int, ...]:
    """Ids behind which an answer ends: end of text, of turn, of message, as stated or as spelled."""
    stated = union(*(fields.token_ids(PREFIX + key) for key in END_TOKEN_KEYS))
    tokens, types = fields.values.get(PREFIX + "tokens"), fields.values.get(PREFIX + "token_type")
    if not isinstance(tokens, list):
        return stated
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    kinds = types if isinstance(types, list) else []
    added = {token: token_id for (token, token_id), kind in zip(ids.items(), kinds, strict=False) if kind in WHOLE}
    return union(stated, spelled_end_tokens(added, ids))


def finite_numbers(fields: Fields, key: str, length: int) -> list[float]:
    """A list of `length` finite numbers; raises ModelFileError."""
    values = fields.items(key)
    if len(values) != length:
        raise fields.error(f"{key} has {len(values)} entries for {length} tokens")
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        raise fields.error(f"{key} must hold finite numbers")
    return values


def _tokens(fields: Fields, vocabulary_size: int) -> list[str]:
    tokens = fields.items(PREFIX + "tokens")
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise fields.error("tokenizer.ggml.tokens must be a list of strings")
    if len(tokens) > vocabulary_size:
        raise fields.error(f"the tokenizer has {len(tokens)} tokens, the model only {vocabulary_size}")
    if len(set(tokens)) != len(tokens):
        raise fields.error("tokenizer.ggml.tokens holds a token twice")
    return tokens


def _types(fields: Fields, tokens: list[str]) -> list[int]:
    """As the file says, but a token that can only be the end of a turn is a control token, as in llama.cpp."""
    types: list[int] = [TokenType.NORMAL] * len(tokens)
    if fields.has(PREFIX + "token_type"):
        types = [int(kind) for kind in finite_numbers(fields, PREFIX + "token_type", len(tokens))]
    return [TokenType.CONTROL if token in TURN_ENDS else kind for token, kind in zip(tokens, types, strict=True)]


def _special(fields: Fields, types: list[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, key in SPECIAL_KEYS.items():
        if fields.has(PREFIX + key) and name in NEEDED:
            found[name] = fields.count(PREFIX + key, minimum=0, maximum=len(types) - 1)
        elif fields.has(PREFIX + key):
            token_id = fields.count(PREFIX + key, minimum=-(2**31), maximum=2**32 - 1)
            found |= {name: token_id} if 0 <= token_id < len(types) else {}  # some files say "none" as -1
        elif fields.text(PREFIX + "model") == "llama" and UNSTATED.get(name, len(types)) < len(types):
            found |= {name: UNSTATED[name]} if types[UNSTATED[name]] in WHOLE else {}
    return found
