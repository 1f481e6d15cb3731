"""What a tokenizer.json's post-processor writes before and behind a text, as token ids."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polyfleet.models.fields import Fields

KINDS = "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing"


@dataclass(frozen=True, slots=True)
class Frame:
    """Token ids before and behind a text, and between two that a model reads together; None: it is not said."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] | None = None


def read_frame(processor: Fields, *, pairs: bool = False) -> Frame:
    """The frame of one post-processor; raises ModelFileError for a kind that is not known. `pairs`: two texts count."""
    kind = processor.text("type")
    if kind == "ByteLevel":  # moves offsets only
        return Frame()
    if kind == "Sequence":
        return _sequence(processor, pairs=pairs)
    if kind in ("BertProcessing", "RobertaProcessing"):
        end = (_pair_id(processor, "sep"),)
        between = end if kind == "BertProcessing" else end * 2
        return Frame((_pair_id(processor, "cls"),), end, between if pairs else None)
    if kind == "TemplateProcessing":
        return _template(processor, pairs=pairs)
    raise processor.error(f"the type {kind!r} is not supported (supported: {KINDS})")


def post_processor(frame: Frame, spell: Callable[[int], str]) -> dict[str, Any] | None:
    """The `tokenizers` JSON object that writes `frame` around one text; None when there is nothing to write."""
    if not frame.before and not frame.after and not frame.between:
        return None
    between = frame.after + frame.before if frame.between is None else frame.between
    tokens = {spell(token_id): token_id for token_id in frame.before + between + frame.after}

    def special(ids: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": spell(token_id), "type_id": 0}} for token_id in ids]

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [*special(frame.before), text("A"), *special(frame.after)],
        "pair": [*special(frame.before), text("A"), *special(between), text("B"), *special(frame.after)],
        "special_tokens": {text: {"id": text, "ids": [i], "tokens": [text]} for text, i in tokens.items()},
    }


def _sequence(processor: Fields, *, pairs: bool) -> Frame:
    """Of the one member that writes tokens: of several, the library's own result leaves out text."""
    frames = [read_frame(each, pairs=pairs) for each in processor.sections("processors")]
    frames = [frame for frame in frames if frame != Frame()]
    if len(frames) > 1:
        raise processor.error("several processors write special tokens, which is not supported")
    return frames[0] if frames else Frame()


def _pair_id(processor: Fields, key: str) -> int:
    """The id of a `[text, id]` pair."""
    pair = processor.items(key)
    if len(pair) != 2 or not isinstance(pair[1], int):
        raise processor.error(f"{key} must be a list of a token and its id")
    return pair[1]


def _template(processor: Fields, *, pairs: bool) -> Frame:
    """Of the template for a single text: exactly one place for it, special tokens around; and of that for two."""
    before, after = _sides(processor, "single", 1)
    if not pairs or not processor.has("pair"):
        return Frame(before, after)
    first, between, last = _sides(processor, "pair", 2)
    return Frame(before, after, between if (first, last) == (before, after) else None)


def _sides(processor: Fields, template: str, places: int) -> list[tuple[int, ...]]:
    """The special tokens before, between and behind the texts."""
    sides: list[list[int]] = [[]]
    for piece in processor.items(template):
        kind, value = next(iter(piece.items())) if isinstance(piece, dict) and len(piece) == 1 else ("", None)
        if kind == "Sequence":
            sides.append([])
        elif kind == "SpecialToken" and isinstance(value, dict):
            sides[-1] += _special_ids(processor, value.get("id"))
        else:
            raise processor.error(f"{template} holds {piece!r}, which is neither a special token nor a text")
    if len(sides) != places + 1:
        wanted = "the text, not one" if places == 1 else "texts, not two"
        raise processor.error(f"{template} has {len(sides) - 1} places for {wanted}")
    return [tuple(side) for side in sides]


def _special_ids(processor: Fields, name: Any) -> list[int]:
    tokens = processor.section("special_tokens").values
    token = tokens.get(name) if isinstance(name, str) else None
    if not isinstance(token, dict):
        raise processor.error(f"special_tokens has no entry for {name!r}")
    return Fields(f"{processor.path}: special_tokens", token).token_ids("ids")
