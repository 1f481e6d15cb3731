"""The tokens of fake workers and fake engines: functions of prompt, choice and index, so that a test knows each one."""

from collections.abc import Sequence
from hashlib import sha256

from polyfleet.simulator.tokens import chance, mark


def fake_token(prompt_ids: Sequence[int], index: int, choice: int = 0, vocabulary_size: int = 1000) -> int:
    """The generated token number `index` (from 0) of the continuation `choice` of a prompt."""
    return chance(mark(prompt_ids), index, choice) % vocabulary_size


def fake_tokens(prompt_ids: Sequence[int], count: int, choice: int = 0, vocabulary_size: int = 1000) -> list[int]:
    """The first `count` generated tokens."""
    return [fake_token(prompt_ids, index, choice, vocabulary_size) for index in range(count)]


def fake_adapted(prompt_ids: Sequence[int], adapter: str) -> tuple[int, ...]:
    """A prompt whose tokens are those that an adapter gives for `prompt_ids`."""
    return (*prompt_ids, int(adapter[:7], 16)) if adapter else tuple(prompt_ids)


def fake_fingerprint(source: str) -> str:
    """Of the adapter in a folder."""
    return sha256(source.encode()).hexdigest()[:32]


def fake_embedding(prompt_ids: Sequence[int], hidden_size: int) -> list[float]:
    """The vector that the fake gives for a prompt; never all zero."""
    return [1.0 + fake_token(prompt_ids, index) / 1000 for index in range(hidden_size)]
