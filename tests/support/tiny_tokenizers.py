"""Tiny tokenizers: GGUF metadata and tokenizer.json of byte-level BPE and of SentencePiece kind."""

from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def byte_characters() -> list[str]:
    """GPT-2's character for each byte: printable ones stand for themselves, others for 256, 257, …"""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_level_metadata(pre: str = "smollm") -> dict[str, Any]:
    """Two control tokens, one of the user, 256 bytes and a few merges: 264 tokens."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = ["<|start|>", "<|end|>", "<tool>", *byte_characters(), *merged]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, USER_DEFINED, *[NORMAL] * (len(tokens) - 3)],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }


def sentencepiece_metadata() -> dict[str, Any]:
    """Unknown, BOS, EOS, 256 bytes, then pieces with scores: the higher one is merged first. 272 tokens."""
    pieces = {"▁": -1.0, "a": -1.0, "b": -1.0, "c": -1.0, "▁a": -9.0, "ab": -3.0, "bc": -2.0, "abc": -8.0}
    pieces |= {"▁abc": -4.0, "é": -5.0, "▁▁": -6.0, "cc": -7.0, "▁b": -7.5}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def tokenizer_json() -> dict[str, Any]:
    """A byte-level tokenizer.json with a post-processor that puts <|start|> first."""
    vocabulary = {token: number for number, token in enumerate(["<|start|>", "<|end|>", *byte_characters()])}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    start = {"SpecialToken": {"id": "<|start|>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {"id": number, "content": f"<|{name}|>", **special} for number, name in enumerate(("start", "end"))
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<|start|>": {"id": "<|start|>", "ids": [0], "tokens": ["<|start|>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
