"""Tokens behind which an answer ends, known by how they are spelled: a chat model's own turn often ends with one that
neither its configuration nor its tokenizer names as end of text.
"""

from collections.abc import Iterable, Mapping

# Spellings that nothing else uses: such a token is a control token whatever its file calls it.
TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<|endofturn|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
)
# Spellings that ordinary text has too (HTML strikes through with `</s>`): they count where they are added tokens.
TEXT_ENDS = ("</s>", "<eos>", "[EOS]", "[EOT]", "<EOT>", "_<EOT>")
MESSAGE_END = "<|end|>"  # ends only a message, not the turn, where these two exist:
HARMONY = ("<|return|>", "<|call|>")


def spelled_end_tokens(added: Mapping[str, int], vocabulary: Mapping[str, int]) -> list[int]:
    """Ids of the end tokens among the added tokens, and among all tokens where the spelling leaves no doubt."""
    names = [name for name in TURN_ENDS if name in vocabulary and not (name == MESSAGE_END and _harmony(vocabulary))]
    return [vocabulary[name] for name in names] + [added[name] for name in TEXT_ENDS if name in added]


def union(*sources: Iterable[int]) -> tuple[int, ...]:
    """All ids once, in the order of the sources."""
    return tuple(dict.fromkeys(token_id for source in sources for token_id in source))


def _harmony(vocabulary: Mapping[str, int]) -> bool:
    return all(name in vocabulary for name in HARMONY)
