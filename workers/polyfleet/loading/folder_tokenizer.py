"""From tokenizer.json, tokenizer_config.json and chat_template.jinja of a Hugging Face folder to TokenizerAssets."""

from pathlib import Path
from typing import Any

from polyfleet.loading.assets import make_assets
from polyfleet.loading.fields import Fields
from polyfleet.loading.folder_config import read_json
from polyfleet.loading.model import ModelFileError, TokenizerAssets

DEFAULT_TEMPLATE = "default"


def folder_tokenizer(folder: Path, end_token_ids: tuple[int, ...], vocabulary_size: int) -> TokenizerAssets | None:
    """The tokenizer, or None when the folder has none; raises ModelFileError for one that is broken."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    tokenizer = read_json(path)
    _check(tokenizer, vocabulary_size)
    settings_path = folder / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.is_file() else Fields(str(settings_path), {})
    bos_token = _token(settings, "bos_token")
    default_bos = bos_token is not None and _starts_with(tokenizer.values.get("post_processor"), bos_token)
    return make_assets(
        tokenizer={**tokenizer.values, "truncation": None, "padding": None, "post_processor": None},
        chat_template=_chat_template(folder, settings),
        bos_token=bos_token,
        eos_token=_token(settings, "eos_token"),
        add_bos=settings.flag("add_bos_token", default_bos),
        end_token_ids=end_token_ids,
    )


def _check(tokenizer: Fields, vocabulary_size: int) -> None:
    """The parts that every tokenizer has, and that its ids are the model's."""
    model = tokenizer.section("model")
    model.text("type", "BPE")
    vocabulary = model.values.get("vocab")
    if not isinstance(vocabulary, (dict, list)) or not vocabulary:
        raise tokenizer.error("model.vocab must hold the vocabulary")
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    added = tokenizer.items("added_tokens") if tokenizer.has("added_tokens") else []
    if not all(isinstance(each, dict) and "content" in each for each in added):
        raise tokenizer.error("added_tokens must be a list of objects with id and content")
    ids += [each.get("id") for each in added]
    if not all(isinstance(each, int) and each >= 0 for each in ids):
        raise tokenizer.error("token ids must be whole numbers from 0")
    if max(ids) >= vocabulary_size:
        raise tokenizer.error(f"token id {max(ids)} is outside the model's vocabulary of {vocabulary_size}")


def _token(settings: Fields, key: str) -> str | None:
    """A token's text, stated as a string or as an object with its content."""
    if not settings.has(key):
        return None
    value = settings.values[key]
    return settings.section(key).text("content") if isinstance(value, dict) else settings.text(key)


def _starts_with(post_processor: Any, token: str) -> bool:
    """Whether a post-processor puts `token` before a text."""
    if not isinstance(post_processor, dict):
        return False
    if post_processor.get("type") == "Sequence":
        return any(_starts_with(each, token) for each in post_processor.get("processors") or ())
    single = post_processor.get("single") if post_processor.get("type") == "TemplateProcessing" else None
    first = single[0] if isinstance(single, list) and single else None
    special = first.get("SpecialToken") if isinstance(first, dict) else None
    return isinstance(special, dict) and special.get("id") == token


def _chat_template(folder: Path, settings: Fields) -> str | None:
    """The file beside the tokenizer, else what its configuration states, else None."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{path}: can't be read ({error})") from None
    if not settings.has("chat_template"):
        return None
    if isinstance(settings.values["chat_template"], list):
        for each in settings.items("chat_template"):
            if isinstance(each, dict) and each.get("name") == DEFAULT_TEMPLATE:
                return Fields(settings.path, each).text("template")
        raise settings.error(f"chat_template lists no template named {DEFAULT_TEMPLATE!r}")
    return settings.text("chat_template")
