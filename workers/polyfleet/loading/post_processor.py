"""What a tokenizer.json's post-processor writes before and behind a text, as token ids."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polyfleet.models.fields import Fields

KINDS = "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing"


@dataclass(frozen=True, slots=True)
class Frame:
    """Token ids before and behind a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def read_frame(processor: Fields) -> Frame:
    """The frame of one post-processor; raises ModelFileError for a kind that is not known."""
    kind = processor.text("type")
    if kind == "ByteLevel":  # moves offsets only
        return Frame()
    if kind == "Sequence":
        return _sequence(processor)
    if kind in ("BertProcessing", "RobertaProcessing"):
        return Frame((_pair_id(processor, "cls"),), (_pair_id(processor, "sep"),))
    if kind == "TemplateProcessing":
        return _template(processor)
    raise processor.error(f"the type {kind!r} is not supported (supported: {KINDS})")


def post_processor(frame: Frame, spell: Callable[[int], str]) -> dict[str, Any] | None:
    """The `tokenizers` JSON object that writes `frame` around one text; None when there is nothing to write."""
    if frame == Frame():
        return None
    tokens = {spell(token_id): token_id for token_id in frame.before + frame.after}

    def special(ids: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": spell(token_id), "type_id": 0}} for token_id in ids]

    def pieces(text: str) -> list[dict[str, Any]]:
        return [*special(frame.before), {"Sequence": {"id": text, "type_id": 0}}, *special(frame.after)]

    return {
        "type": "TemplateProcessing",
        "single": pieces("A"),
        "pair": pieces("A") + pieces("B"),
        "special_tokens": {text: {"id": text, "ids": [i], "tokens": [text]} for text, i in tokens.items()},
    }


def _sequence(processor: Fields) -> Frame:
    """Of the one member that writes tokens: of several, the library's own result leaves out text."""
    frames = [frame for frame in map(read_frame, processor.sections("processors")) if frame != Frame()]
    if len(frames) > 1:
        raise processor.error("several processors write special tokens, which is not supported")
    return frames[0] if frames else Frame()


def _pair_id(processor: Fields, key: str) -> int:
    """The id of a `[text, id]` pair."""
    pair = processor.items(key)
    if len(pair) != 2 or not isinstance(pair[1], int):
        raise processor.error(f"{key} must be a list of a token and its id")
    return pair[1]


def _template(processor: Fields) -> Frame:
    """Of the template for a single text: exactly one place for it, special tokens around."""
    sides: list[list[int]] = [[]]
    for piece in processor.items("single"):
        kind, value = next(iter(piece.items())) if isinstance(piece, dict) and len(piece) == 1 else ("", None)
        if kind == "Sequence":
            sides.append([])
        elif kind == "SpecialToken" and isinstance(value, dict):
            sides[-1] += _special_ids(processor, value.get("id"))
        else:
            raise processor.error(f"single holds {piece!r}, which is neither a special token nor a text")
    if len(sides) != 2:
        raise processor.error(f"single has {len(sides) - 1} places for the text, not one")
    return Frame(tuple(sides[0]), tuple(sides[1]))


def _special_ids(processor: Fields, name: Any) -> list[int]:
    tokens = processor.section("special_tokens").values
    token = tokens.get(name) if isinstance(name, str) else None
    if not isinstance(token, dict):
        raise processor.error(f"special_tokens has no entry for {name!r}")
    return Fields(f"{processor.path}: special_tokens", token).token_ids("ids")
