"""Pre-tokenizers of byte-level BPE vocabularies, by the name that GGUF metadata gives them.

Each is a `tokenizers` JSON object. The patterns are those of the models' own published tokenizers; GGUF's names for
them are listed in https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf_update.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split before merging, and what goes with it in the model's tokenizer."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False  # a piece that is a whole token is taken as it is
    add_bos: bool = False  # what holds when the file does not say


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    """GPT-2's mapping of bytes to characters, behind GPT-2's own splitting if `use_regex`."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _words(digits: str) -> str:
    """Llama 3's pattern; `digits` says how many digits make a piece."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


GPT2 = PreTokenizer((_byte_level(True),))
DIGITS = PreTokenizer(({"type": "Digits", "individual_digits": True}, _byte_level(True)))
LLAMA3 = PreTokenizer((_split(_words("{1,3}")), _byte_level(False)), ignore_merges=True, add_bos=True)
QWEN2 = PreTokenizer((_split(_words("")), _byte_level(False)), normalizer={"type": "NFC"})

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": GPT2,
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "olmo": GPT2,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "codeshell": DIGITS,
    "command-r": DIGITS,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
}
