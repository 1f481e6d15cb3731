"""Special and added tokens of a Hugging Face folder, which three of its files may state."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from polyfleet.loading.tokenizer.assets import SpecialTokens
from polyfleet.models.fields import Fields

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS: Mapping[str, bool] = {
    "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False,
}  # fmt: skip
ADDED = "added_tokens_decoder"


def special_tokens(settings: Fields, special_map: Fields) -> dict[str, str | list[str]]:
    """Name -> text, of tokenizer_config.json and special_tokens_map.json; which counts more is as in transformers."""
    order = (special_map, settings) if settings.has(ADDED) else (settings, special_map)
    return {name: text for fields in order for name, text in _stated(fields)}


def added_tokens(
    listed: list[dict[str, Any]], settings: Fields, special: SpecialTokens, vocabulary: Mapping[str, int]
) -> list[dict[str, Any]]:
    """What tokenizer.json lists, changed and completed as transformers does it, in the order of ids."""
    found = {each["content"]: each for each in listed}
    named = set(texts(special))
    for token_id, token in _decoder(settings):
        content = token.text("content")
        flags = {flag: token.flag(flag, default) for flag, default in FLAGS.items()}
        flags["special"] = flags["special"] or content in named
        place = found[content]["id"] if content in found else vocabulary.get(content, token_id)
        found[content] = {"id": place, "content": content, **flags}
    for content in named & vocabulary.keys() - found.keys():
        found[content] = {"id": vocabulary[content], "content": content, **FLAGS, "normalized": False, "special": True}
    return sorted(found.values(), key=lambda token: int(token["id"]))


def texts(special: SpecialTokens) -> Iterator[str]:
    """The texts alone."""
    for text in special.values():
        yield from [text] if isinstance(text, str) else text


def _stated(fields: Fields) -> Iterable[tuple[str, str | list[str]]]:
    for name, value in fields.values.items():
        if not value and not isinstance(value, (int, float)):
            continue  # null or empty: none
        if name in NAMES:
            yield name, _text(fields, name)
        elif name.endswith("_token") and (isinstance(value, str) or (isinstance(value, dict) and "content" in value)):
            yield name, _text(fields, name)  # one of the model's own
        elif name == "extra_special_tokens" and isinstance(value, dict):
            yield from _stated(Fields(f"{fields.path}: {name}", {f"{key}": text for key, text in value.items()}))
        elif name in ("additional_special_tokens", "extra_special_tokens") and isinstance(value, list):
            entries = (Fields(f"{fields.path}: {name}", {"entry": each}) for each in value)
            yield "additional_special_tokens", [_text(entry, "entry") for entry in entries]


def _text(fields: Fields, key: str) -> str:
    """A token's text, stated as a string or as an object with its content."""
    value = fields.values[key]
    return fields.section(key).text("content") if isinstance(value, dict) else fields.text(key)


def _decoder(settings: Fields) -> Iterator[tuple[int, Fields]]:
    """Id and properties of each token in `added_tokens_decoder`."""
    if not settings.has(ADDED):
        return
    section = settings.section(ADDED)
    for token_id in section.values:
        if not (token_id.isascii() and token_id.isdigit()):
            raise section.error(f"{token_id!r} is no token id")
        yield int(token_id), section.section(token_id)
