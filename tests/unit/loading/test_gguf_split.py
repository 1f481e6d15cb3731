"""A model in several GGUF files, and what can be wrong with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tests.support.tiny_models import TinyShape, write_gguf

from polyfleet.loading.glance import glance
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError

SHAPE = TinyShape()


def split(folder: Path, changes: Mapping[int, Mapping[str, Any]] | None = None) -> list[Path]:
    """The model in three files; the second and third have no metadata of the model."""
    folder.mkdir(exist_ok=True)
    whole, shape = folder / "whole.gguf", SHAPE
    write_gguf(whole, shape, "Q8_0")
    names = [each.name for each in gguf.GGUFReader(whole).tensors]
    paths = [folder / f"tiny-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for number, path in enumerate(paths):
        extra = {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        others = [name for place, name in enumerate(names) if place % 3 != number]
        write_gguf(path, shape, "Q8_0", extra=extra | dict((changes or {}).get(number, {})), without=others)
    return paths


def test_a_model_in_several_files(tmp_path: Path) -> None:
    paths = split(tmp_path)
    whole = load_model(tmp_path / "whole.gguf").weights
    for path in (paths[0], paths[2]):  # any of them names all
        found = load_model(path).weights
        assert found.keys() == whole.keys()
        for name, weight in found.items():
            torch.testing.assert_close(weight.data, whole[name].data, rtol=0, atol=0)


def test_files_of_several_that_do_not_fit(tmp_path: Path) -> None:
    paths = split(tmp_path)
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[:-1000])
    assert "tiny-00002-of-00003.gguf: is truncated: tensor" in told(paths[0])
    paths[1].unlink()
    assert "is one of 3 files, of which tiny-00002-of-00003.gguf is missing" in told(paths[0])
    paths[2].rename(paths[1])
    paths[2].write_bytes(data)
    assert "tiny-00002-of-00003.gguf: states that it is file 3 of 3" in told(paths[0])
    paths[0].rename(tmp_path / "other.gguf")
    assert "which must have names such as NAME-00001-of-00003.gguf" in told(tmp_path / "other.gguf")
    paths = split(tmp_path, {0: {"split.tensors.count": 99}})
    assert "states 99 tensors, the 3 files hold 21" in told(paths[0])


def test_a_file_that_is_named_as_a_part_and_states_nothing_of_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny-00001-of-00002.gguf", SHAPE)
    reason = "is named as one of 2 files, but states no split.count: rename it if it is whole"
    assert reason in told(tmp_path / "tiny-00001-of-00002.gguf")
    write_gguf(tmp_path / "tiny-00001-of-00001.gguf", SHAPE)
    load_model(tmp_path / "tiny-00001-of-00001.gguf")


def told(path: Path) -> str:
    """By a glance, before anything is started, and by loading."""
    with pytest.raises(ModelFileError) as caught:
        glance(path)
    with pytest.raises(ModelFileError) as other:
        load_model(path)
    assert str(caught.value) == str(other.value)
    return str(caught.value)
