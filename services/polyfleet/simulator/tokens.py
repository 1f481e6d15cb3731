"""What a simulated worker says: a function of prompt, choice and position, so that any client can check every token.

Its ids are bytes: a prompt's are those of its UTF-8, an answer's are printable ASCII.
"""

import json
import zlib
from array import array
from collections.abc import Sequence
from hashlib import blake2b

VOCABULARY = 256
PRINTABLE = range(32, 127)
CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def mark(prompt_ids: Sequence[int]) -> int:
    """A prompt as the number that `chance` needs of it."""
    return zlib.crc32(array("I", prompt_ids))


def chance(prompt_mark: int, index: int, choice: int) -> int:
    """A number below 2**32 for position `index` (from 0) of the continuation `choice`."""
    return zlib.crc32(array("I", [index, choice]), prompt_mark)


def token(prompt_mark: int, index: int, choice: int = 0) -> int:
    """The id there."""
    return PRINTABLE[chance(prompt_mark, index, choice) % len(PRINTABLE)]


def answer(prompt_ids: Sequence[int], count: int, choice: int = 0) -> list[int]:
    """The first `count` ids behind a prompt."""
    prompt_mark = mark(prompt_ids)
    return [token(prompt_mark, index, choice) for index in range(count)]


def fingerprint() -> str:
    """Of what all simulated workers compute alike, as ModelInfo has it."""
    return blake2b(b"simulated, bytes, 1", digest_size=16).hexdigest()


def tokenizer_document() -> bytes:
    """The tokenizer assets: one id for each byte, and the plainest chat."""
    definition = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": _byte_names(), "merges": []},
    }
    assets: dict[str, object] = {
        "tokenizer": definition,
        "chat_template": CHAT,
        "bos_token": None,
        "eos_token": None,
        "add_bos": False,
        "end_token_ids": [],
    }
    return json.dumps(assets, sort_keys=True).encode()


def _byte_names() -> dict[str, int]:
    """What byte-level tokenizers call each byte: Latin-1 where that can be seen, else what follows Latin-1."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(unseen)}
