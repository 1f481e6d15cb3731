"""From tokenizer.json and the files beside it in a Hugging Face folder to TokenizerAssets."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyfleet.loading.folder.ranking import template_of
from polyfleet.loading.folder.special import added_tokens, special_tokens, texts
from polyfleet.loading.model import ImageSettings, ModelFileError, TokenizerAssets
from polyfleet.loading.sampling_defaults import SamplingDefaults, folder_defaults, published_defaults
from polyfleet.loading.tokenizer.assets import SpecialTokens, make_assets
from polyfleet.loading.tokenizer.end_tokens import spelled_end_tokens, union
from polyfleet.loading.tokenizer.parts import check_added, check_parts, read_added, read_vocabulary
from polyfleet.loading.tokenizer.post_processor import Frame, post_processor, read_frame
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields, read_json, read_optional_json

log = logging.getLogger(__name__)

OTHERS = ("tokenizer.model", "tekken.json", "spiece.model", "vocab.json", "vocab.txt")  # files of tokenizers
DEFAULT_TEMPLATE, TOOL_TEMPLATE = "default", "tool_use"


def folder_tokenizer(
    folder: Path, config: ModelConfig, images: ImageSettings | None = None
) -> tuple[TokenizerAssets | None, tuple[int, ...]]:
    """The tokenizer, None when the folder has none, and all end tokens; raises ModelFileError for a broken one."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        _warn_of_others(folder)
        return None, config.end_token_ids
    tokenizer, settings = read_json(path), read_optional_json(folder / "tokenizer_config.json")
    check_parts(tokenizer)
    frame = _read_frame(tokenizer, pairs=config.cross_encoder and not config.score_tokens)
    special = special_tokens(settings, read_optional_json(folder / "special_tokens_map.json"))
    vocabulary = read_vocabulary(tokenizer)
    added = added_tokens(read_added(tokenizer), settings, special, vocabulary)
    check_added(tokenizer, added, vocabulary, config.vocabulary_size)
    ids = vocabulary | {token["content"]: token["id"] for token in added}
    spell = _spelled(tokenizer, ids, frame)
    if "bos_token" not in special and "bos_token" not in settings.values:
        special |= _first_token(special, [spell[token_id] for token_id in frame.before])
    frame, add_bos = _settle(settings, frame, special, ids)
    ends = _end_tokens(config, ids.get(str(special.get("eos_token"))), added)
    template = _chat_template(folder, settings)
    return make_assets(
        tokenizer={
            **tokenizer.values,
            "added_tokens": added,
            "truncation": None,
            "padding": None,
            "post_processor": post_processor(frame, spell.__getitem__),
            "model": _without_chance(tokenizer.section("model").values),
        },
        chat_template=template,
        tool_template=_tool_template(folder, settings),
        special_tokens=special,
        add_bos=add_bos,
        end_token_ids=ends,
        sampling_defaults=_sampling_defaults(folder, config, template is not None),
        images=images,
        pair_template=template_of(config, vocabulary, str(folder)),
    ), ends


def _end_tokens(config: ModelConfig, eos: int | None, added: list[dict[str, Any]]) -> tuple[int, ...]:
    ids = {token["content"]: token["id"] for token in added}
    return union(config.end_token_ids, () if eos is None else (eos,), spelled_end_tokens(ids, ids))


def _without_chance(model: Mapping[str, Any]) -> dict[str, Any]:
    """Without the random merges that are for training."""
    return {key: None if key == "dropout" else value for key, value in model.items()}


def _warn_of_others(folder: Path) -> None:
    if other := next((each for each in OTHERS if (folder / each).is_file()), ""):
        log.warning(
            "%s: %s is not read, so the model takes and gives token ids alone: write a tokenizer.json with "
            "transformers' AutoTokenizer.from_pretrained(…).save_pretrained(…)",
            *(folder, other),
        )


def _read_frame(tokenizer: Fields, *, pairs: bool) -> Frame:
    """What stands around a text; `pairs`: and between two, which must be said."""
    stated = tokenizer.has("post_processor")
    frame = read_frame(tokenizer.section("post_processor"), pairs=pairs) if stated else Frame()
    if pairs and frame.between is None:
        raise tokenizer.error("post_processor does not say how two texts are put together, which a cross encoder reads")
    return frame


def _spelled(tokenizer: Fields, ids: Mapping[str, int], frame: Frame) -> dict[int, str]:
    """The text of each id; raises ModelFileError when the frame has one without."""
    found = {token_id: text for text, token_id in ids.items()}
    for token_id in frame.before + (frame.between or ()) + frame.after:
        if token_id not in found:
            raise tokenizer.error(f"post_processor writes the token id {token_id}, which the vocabulary has not")
    return found


def _first_token(special: SpecialTokens, before: list[str]) -> dict[str, str | list[str]]:
    """BOS as the post-processor alone states it: the first token that it writes, unless that has another name."""
    return {"bos_token": before[0]} if before and before[0] not in texts(special) else {}


def _settle(settings: Fields, frame: Frame, special: SpecialTokens, ids: Mapping[str, int]) -> tuple[Frame, bool]:
    """Whether BOS begins a text, and what else stands around it: tokenizer_config.json may overrule tokenizer.json."""
    bos, eos = (ids.get(str(special.get(name))) for name in ("bos_token", "eos_token"))
    begins = bos is not None and frame.before[:1] == (bos,)
    ends = eos is not None and frame.after[-1:] == (eos,)
    add_bos = settings.flag("add_bos_token", begins)
    if add_bos and bos is None and "bos_token" in special:
        raise settings.error(f"bos_token {special['bos_token']!r} is not in the vocabulary")
    after = frame.after[:-1] if ends else frame.after
    if settings.flag("add_eos_token", ends) and eos is not None:
        after += (eos,)
    return replace(frame, before=frame.before[1:] if begins else frame.before, after=after), add_bos


def _sampling_defaults(folder: Path, config: ModelConfig, chats: bool) -> SamplingDefaults:
    stated = folder_defaults(read_optional_json(folder / "generation_config.json"), config.vocabulary_size)
    return stated or (published_defaults(config.name) if chats else {})


def _chat_template(folder: Path, settings: Fields) -> str | None:
    """The file beside the tokenizer, else what its configuration states, else None."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read_template(path)
    for name in ("chat_template.json", "processor_config.json"):  # of models that see, in older files
        if (beside := read_optional_json(folder / name)).has("chat_template"):
            return beside.text("chat_template")
    if not settings.has("chat_template"):
        return None
    if isinstance(settings.values["chat_template"], list | dict):
        named = _named_template(settings, DEFAULT_TEMPLATE)
        if named is None:
            raise settings.error(f"chat_template lists no template named {DEFAULT_TEMPLATE!r}")
        return named
    return settings.text("chat_template")


def _tool_template(folder: Path, settings: Fields) -> str | None:
    """Another one for chats with tools, where there is one."""
    path = folder / "additional_chat_templates" / f"{TOOL_TEMPLATE}.jinja"
    if path.is_file():
        return _read_template(path)
    beside = (folder / "chat_template.jinja").is_file()
    listed = isinstance(settings.values.get("chat_template"), list | dict)
    return _named_template(settings, TOOL_TEMPLATE) if listed and not beside else None


def _named_template(settings: Fields, name: str) -> str | None:
    """Of a list of names and templates, or of an object of templates by their names."""
    if isinstance(settings.values["chat_template"], dict):
        templates = settings.section("chat_template")
        return templates.text(name) if templates.has(name) else None
    for each in settings.items("chat_template"):
        if isinstance(each, dict) and each.get("name") == name:
            return Fields(settings.path, each).text("template")
    return None


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: can't be read ({error})") from None
