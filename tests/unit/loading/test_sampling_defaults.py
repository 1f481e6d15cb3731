"""Which sampling defaults a model's files give, and which are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_models import TinyShape, write_folder, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata, tokenizer_json

from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError

SHAPE = TinyShape(vocabulary=300)


def defaults(path: Path) -> dict[str, float]:
    assets = load_model(path).tokenizer
    assert assets is not None
    found: dict[str, float] = json.loads(assets.document)["sampling_defaults"]
    return found


def folder_with(path: Path, generation: dict[str, Any] | None, **settings: Any) -> Path:
    folder = write_folder(path, SHAPE)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def gguf_with(path: Path, extra: dict[str, Any]) -> Path:
    write_gguf(path, SHAPE, extra=byte_level_metadata() | extra)
    return path


def test_a_folder_gives_what_it_states_and_no_more(tmp_path: Path) -> None:
    stated = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.05}
    aside = {
        "do_sample": False,
        "max_new_tokens": 7,
        "typical_p": 0.5,
        "eos_token_id": 2,
        "transformers_version": "4.51",
    }
    assert defaults(folder_with(tmp_path / "all", stated | aside)) == stated
    assert defaults(folder_with(tmp_path / "one", {"temperature": 0, "top_p": None})) == {"temperature": 0}
    assert defaults(folder_with(tmp_path / "none", None)) == {}


@pytest.mark.parametrize(("stated", "taken"), [(-1, 0), (0, 0), (50, 50), (1000, 300)])
def test_top_k_is_off_or_within_the_vocabulary(tmp_path: Path, stated: int, taken: int) -> None:
    assert defaults(folder_with(tmp_path / "model", {"top_k": stated})) == {"top_k": taken}


@pytest.mark.parametrize(
    ("generation", "reason"),
    [
        ({"temperature": -0.1}, "temperature must be from 0 to 2, not -0.1"),
        ({"temperature": 2.5}, "temperature must be from 0 to 2, not 2.5"),
        ({"temperature": float("nan")}, "temperature must be from 0 to 2, not nan"),
        ({"temperature": "0.7"}, "temperature must be a number, not '0.7'"),
        ({"temperature": True}, "temperature must be a number, not True"),
        ({"top_p": 0}, "top_p must be over 0 up to 1, not 0"),
        ({"top_p": 1.1}, "top_p must be over 0 up to 1, not 1.1"),
        ({"min_p": 2}, "min_p must be from 0 to 1, not 2"),
        ({"repetition_penalty": 0}, "repetition_penalty must be over 0 up to 2, not 0"),
        ({"top_k": 1.5}, "top_k must be a whole number, not 1.5"),
        ({"top_k": -2}, "top_k must be -1 to"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, generation: dict[str, Any], reason: str) -> None:
    folder = folder_with(tmp_path / "model", generation)
    with pytest.raises(ModelFileError) as caught:
        load_model(folder)
    assert str(caught.value).startswith(f"{folder}/generation_config.json: {reason}")


def test_a_gguf_file_gives_what_it_states(tmp_path: Path) -> None:
    sampling = {"temp": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "penalty_repeat": 1.1, "mirostat": 2}
    extra = {f"general.sampling.{key}": value for key, value in sampling.items()}
    expected = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    assert defaults(gguf_with(tmp_path / "model.gguf", extra)) == expected


def test_gguf_nonsense_is_refused(tmp_path: Path) -> None:
    path = gguf_with(tmp_path / "model.gguf", {"general.sampling.temp": 3.0})
    with pytest.raises(ModelFileError, match=r"general\.sampling\.temp must be from 0 to 2, not 3\.0"):
        load_model(path)


def test_smollm2_has_its_published_ones_when_it_chats_and_states_none(tmp_path: Path) -> None:
    published = {"temperature": 0.2, "top_p": 0.9}
    name = {"general.basename": "SmolLM2"}
    assert defaults(gguf_with(tmp_path / "basename.gguf", name)) == published
    assert defaults(gguf_with(tmp_path / "name.gguf", {"general.name": "Smollm2 135M Instruct"})) == published
    assert defaults(gguf_with(tmp_path / "own.gguf", name | {"general.sampling.temp": 0.5})) == {"temperature": 0.5}
    assert defaults(gguf_with(tmp_path / "other.gguf", {"general.basename": "SmolLM"})) == {}
    assert defaults(folder_with(tmp_path / "SmolLM2-135M-Instruct", {}, chat_template="x")) == published
    assert defaults(folder_with(tmp_path / "SmolLM2-135M", {})) == {}
