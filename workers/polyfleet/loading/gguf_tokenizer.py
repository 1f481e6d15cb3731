"""From a GGUF file's tokenizer metadata to TokenizerAssets."""

from enum import IntEnum
from typing import Any

from polyfleet.loading.assets import make_assets
from polyfleet.loading.fields import Fields
from polyfleet.loading.model import TokenizerAssets
from polyfleet.loading.pretokenizers import PRE_TOKENIZERS, PreTokenizer

PREFIX = "tokenizer.ggml."
SPACE = "▁"  # how SentencePiece writes a space
END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenType(IntEnum):
    """GGUF's kinds of tokens."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def gguf_end_tokens(fields: Fields) -> tuple[int, ...]:
    """Ids behind which an answer ends: end of text, of turn, of message."""
    keys = [PREFIX + key for key in END_TOKEN_KEYS if fields.has(PREFIX + key)]
    return tuple(dict.fromkeys(fields.count(key, minimum=0) for key in keys))


def gguf_tokenizer(fields: Fields, vocabulary_size: int) -> TokenizerAssets | None:
    """The tokenizer, or None for a file without one; raises ModelFileError for one that is broken or unknown."""
    model = fields.text(PREFIX + "model", "none")
    if model in ("none", "no_vocab"):
        return None
    tokens = _tokens(fields, vocabulary_size)
    types = _types(fields, len(tokens))
    if model == "gpt2":
        pre = _pre_tokenizer(fields)
        tokenizer, default_bos = _byte_level_bpe(fields, tokens, types, pre), pre.add_bos
    elif model == "llama":
        tokenizer, default_bos = _sentencepiece_bpe(fields, tokens, types), True
    else:
        raise fields.error(f"the tokenizer model {model!r} is not supported (supported: gpt2, llama)")
    return make_assets(
        tokenizer=tokenizer,
        chat_template=fields.text("tokenizer.chat_template") if fields.has("tokenizer.chat_template") else None,
        bos_token=_named(fields, "bos_token_id", tokens),
        eos_token=_named(fields, "eos_token_id", tokens),
        add_bos=fields.flag(PREFIX + "add_bos_token", default_bos),
        end_token_ids=gguf_end_tokens(fields),
    )


def _tokens(fields: Fields, vocabulary_size: int) -> list[str]:
    tokens = fields.items(PREFIX + "tokens")
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise fields.error("tokenizer.ggml.tokens must be a list of strings")
    if len(tokens) > vocabulary_size:
        raise fields.error(f"the tokenizer has {len(tokens)} tokens, the model only {vocabulary_size}")
    if len(set(tokens)) != len(tokens):
        raise fields.error("tokenizer.ggml.tokens holds a token twice")
    return tokens


def _types(fields: Fields, num_tokens: int) -> list[int]:
    if not fields.has(PREFIX + "token_type"):
        return [TokenType.NORMAL] * num_tokens
    types = fields.items(PREFIX + "token_type")
    if len(types) != num_tokens:
        raise fields.error(f"tokenizer.ggml.token_type has {len(types)} entries for {num_tokens} tokens")
    return types


def _named(fields: Fields, key: str, tokens: list[str]) -> str | None:
    if not fields.has(PREFIX + key):
        return None
    return tokens[fields.count(PREFIX + key, minimum=0, maximum=len(tokens) - 1)]


def _pre_tokenizer(fields: Fields) -> PreTokenizer:
    name = fields.text(PREFIX + "pre", "default")
    if name not in PRE_TOKENIZERS:
        names = ", ".join(sorted(PRE_TOKENIZERS))
        raise fields.error(f"the pre-tokenizer {name!r} is not supported (supported: {names})")
    return PRE_TOKENIZERS[name]


def _byte_level_bpe(fields: Fields, tokens: list[str], types: list[int], pre: PreTokenizer) -> dict[str, Any]:
    """GPT-2's kind: bytes as characters, ranked merges."""
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [_merge(fields, merge, vocabulary) for merge in fields.items(PREFIX + "merges")]
    model = _bpe(vocabulary, merges) | {"ignore_merges": pre.ignore_merges}
    steps = list(pre.steps)
    return _tokenizer(
        model,
        _added_tokens(tokens, types, normalized=False),
        normalizer=pre.normalizer,
        pre_tokenizer=steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        decoder={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    )


def _merge(fields: Fields, merge: Any, vocabulary: dict[str, int]) -> list[str]:
    left, _, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
    if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
        raise fields.error(f"tokenizer.ggml.merges holds {merge!r}, which joins no two tokens into a third")
    return [left, right]


def _sentencepiece_bpe(fields: Fields, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """SentencePiece's kind: scores instead of merges, spaces written as ▁, unknown characters as bytes."""
    scores = fields.items(PREFIX + "scores")
    if len(scores) != len(tokens):
        raise fields.error(f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    unknown = _named(fields, "unknown_token_id", tokens)
    unknown = unknown or next((tokens[i] for i, kind in enumerate(types) if kind == TokenType.UNKNOWN), None)
    model = _bpe(vocabulary, _merges_by_score(tokens, types, scores))
    model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": unknown}
    prefixed = fields.flag(PREFIX + "add_space_prefix", True)
    normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": SPACE}] if prefixed else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefixed:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _tokenizer(
        model,
        _added_tokens(tokens, types, normalized=True),
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _merges_by_score(tokens: list[str], types: list[int], scores: list[float]) -> list[list[str]]:
    """All ways to join two mergeable tokens into a third, best score of the third first."""
    mergeable = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    ids = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind in mergeable}
    ranked: list[tuple[float, int, int, list[str]]] = []
    for token, token_id in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token_id], left, right, [token[:cut], token[cut:]]))
    return [merge for _, _, _, merge in sorted(ranked)]


def _bpe(vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _added_tokens(tokens: list[str], types: list[int], *, normalized: bool) -> list[dict[str, Any]]:
    """Tokens matched as a whole before any splitting; control tokens are special, those of the user are text.

    `normalized`: whether the user's tokens are written as the normaliser leaves text.
    """
    whole = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": normalized and kind == TokenType.USER_DEFINED,
            "special": kind != TokenType.USER_DEFINED,
        }
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in whole
    ]


def _tokenizer(
    model: dict[str, Any],
    added_tokens: list[dict[str, Any]],
    *,
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
