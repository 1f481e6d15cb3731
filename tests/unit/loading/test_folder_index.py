"""Shards and their index: which files are read, and one sentence wherever they say otherwise than each other."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.loading.fingerprint import fingerprint
from polyfleet.loading.folder.files import INDEX
from polyfleet.loading.glance import glance
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.progress import silent
from polyfleet.loading.quantise import quantise_folder

SHAPE = TinyShape(vocabulary=300)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
NORM = "model.norm.weight"  # which lies in the second


def quantise(folder: Path) -> None:
    quantise_folder(folder, folder.with_name("quantised"), 4, 0, silent)


READERS = pytest.mark.parametrize("read", [load_model, glance, quantise])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", SHAPE, num_shards=2)


def refused(read: Callable[[Path], Any], folder: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read(folder)
    return str(caught.value)


def reindex(folder: Path, name: str, file: Any) -> None:
    """Say that a tensor lies in `file`; None says nothing of it."""
    places = {**json.loads((folder / INDEX).read_text())["weight_map"], name: file}
    (folder / INDEX).write_text(json.dumps({"weight_map": {each: at for each, at in places.items() if at is not None}}))


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("model-00009-of-00003.safetensors", "the file model-00009-of-00003.safetensors of weight_map is missing"),
        (f"../model/{FIRST}", "is no safetensors file of this folder"),
        ("weights.bin", "is no safetensors file of this folder"),
        (7, "is no safetensors file of this folder"),
    ],
)
def test_files_that_are_none(folder: Path, file: Any, reason: str) -> None:
    reindex(folder, NORM, file)
    assert reason in refused(load_model, folder)


@READERS
@pytest.mark.parametrize(
    ("name", "file", "reason"),
    [
        ("model.more.weight", FIRST, f"says that tensor 'model.more.weight' lies in {FIRST}, which does not hold it"),
        (NORM, FIRST, f"says that tensor '{NORM}' lies in {FIRST}, which does not hold it"),
    ],
)
def test_index_that_says_otherwise_than_its_files(
    folder: Path, read: Callable[[Path], Any], name: str, file: str, reason: str
) -> None:
    reindex(folder, name, file)
    assert refused(read, folder) == f"{folder / INDEX}: weight_map {reason}"


def test_tensor_that_the_index_leaves_out_is_read(folder: Path) -> None:
    whole = fingerprint(load_model(folder))
    reindex(folder, NORM, None)
    assert fingerprint(load_model(folder)) == whole


@READERS
def test_tensor_in_two_files(folder: Path, read: Callable[[Path], Any]) -> None:
    (folder / INDEX).unlink()
    (folder / FIRST).write_bytes((folder / SECOND).read_bytes())
    message = refused(read, folder)
    assert message.startswith(f"{folder / SECOND}: tensor 'model.")
    assert message.endswith(f"stands in {FIRST} too")
