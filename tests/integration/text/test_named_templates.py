"""Templates by name: which one a chat takes, as transformers has it, whichever way the files state them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_models import TinyShape, write_folder
from tests.support.tiny_tokenizers import tokenizer_json
from transformers import PreTrainedTokenizerFast

from polyfleet.loading.load import load_model
from polyfleet.models.errors import ModelFileError
from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.requests import Message

TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEMPLATES = {
    "default": "usual " + TURNS,
    "tool_use": "{% for t in tools %}[{{ t.function.name }}] {% endfor %}" + TURNS,
    "rag": "{{ documents }}" + TURNS,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {"type": "object"}}}
CHAT = [{"role": "user", "content": "Hi"}]


def _listed(templates: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "template": text} for name, text in templates.items()]


def _write(folder: Path, templates: Any, *, files: bool) -> PreTrainedTokenizerFast:
    """The model, and transformers' tokenizer of its folder."""
    write_folder(folder, TinyShape(vocabulary=300))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if files:
        (folder / "additional_chat_templates").mkdir()
        for name, text in templates.items():
            inner = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
            (folder / inner).write_text(text)
        settings["chat_template"] = "never this one"
    else:
        settings["chat_template"] = templates
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("files", [True, False])
@pytest.mark.parametrize(
    "names", [("default",), ("default", "tool_use"), ("rag", "tool_use", "default"), ("default", "rag")]
)
def test_the_template_that_transformers_takes(tmp_path: Path, names: tuple[str, ...], files: bool) -> None:
    templates = {name: TEMPLATES[name] for name in names}
    theirs = _write(tmp_path, templates if files else _listed(templates), files=files)
    assets = load_model(tmp_path).tokenizer
    assert assets is not None
    text = PromptText(assets.document)
    chat = [Message(each["role"], each["content"]) for each in CHAT]
    assert text.render_chat(chat) == theirs.apply_chat_template(CHAT, tokenize=False)
    if "tool_use" in names:  # else tools stand in plain text, which transformers leaves out
        expected = theirs.apply_chat_template(CHAT, tools=[TOOL], tokenize=False)
        assert text.render_chat(chat, tools=[json.dumps(TOOL)]) == expected
        assert "[weather]" in expected


def test_templates_by_name_in_an_object_and_without_a_default(tmp_path: Path) -> None:
    write_folder(tmp_path, TinyShape(vocabulary=300))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATES}))
    assets = load_model(tmp_path).tokenizer
    assert assets is not None
    document = json.loads(assets.document)
    assert [document["chat_template"], document["tool_template"]] == [TEMPLATES["default"], TEMPLATES["tool_use"]]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": _listed({"rag": "x"})}))
    with pytest.raises(ModelFileError, match="chat_template lists no template named 'default'"):
        load_model(tmp_path)
