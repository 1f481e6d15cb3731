"""Pooling as a folder's own files state it."""

import json
from pathlib import Path

import pytest

from polyfleet.loading.folder.pooling import read_pooling
from polyfleet.models.errors import ModelFileError
from polyfleet.wire.requests import Pooling


def write(folder: Path, *kinds: str, **pooling: object) -> Path:
    modules = [{"path": f"{at}_{kind}" if at else "", "type": f"a.b.{kind}"} for at, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, Pooling.MEAN),
        ({"pooling_mode_cls_token": True}, Pooling.CLS),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False, "include_prompt": True}, Pooling.LAST),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
    ],
)
def test_poolings(tmp_path: Path, stated: dict[str, object], expected: Pooling) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", "Normalize", **stated)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 100, "do_lower_case": false}')
    wanted = {"pooling": expected, "normalized": True, "context_length": 100}
    assert read_pooling(folder, 512) == wanted
    assert read_pooling(folder, 64) == {**wanted, "context_length": 64}


@pytest.mark.parametrize(
    ("kinds", "stated", "complaint"),
    [
        (("Transformer", "Pooling"), {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens is not supported"),
        (("Transformer", "Pooling"), {}, "no pooling is not supported"),
        (("Transformer", "Pooling"), {"pooling_mode": "max"}, "pooling_mode = 'max' is not supported"),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "pooling_mode_mean_tokens and pooling_mode_cls_token is not supported",
        ),
        (("Transformer", "Pooling", "Dense"), {"pooling_mode": "mean"}, "the module Dense in '2_Dense' is not"),
    ],
)
def test_what_is_refused(tmp_path: Path, kinds: tuple[str, ...], stated: dict[str, object], complaint: str) -> None:
    with pytest.raises(ModelFileError, match=complaint):
        read_pooling(write(tmp_path, *kinds, **stated), 512)


def test_a_folder_without_modules(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, 512) == {}
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ModelFileError, match="must hold a JSON array"):
        read_pooling(tmp_path, 512)
