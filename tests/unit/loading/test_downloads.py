"""Folders as people download them: what is no model that can be read is named, what tells of itself loads."""

import json
from pathlib import Path

import pytest
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.loading.glance import glance
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError


def refused(folder: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_model(folder)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", TinyShape())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.onnx", r"the weights are in ONNX \(model.onnx\), which is not read: a model is"),
        ("onnx/decoder.ONNX", r"are in ONNX \(decoder.ONNX\)"),
        ("openvino_model.xml", "in OpenVINO's format"),
        ("tf_model.h5", "in TensorFlow's format"),
        ("weights.npz", "in NumPy's format"),
        ("consolidated.00.pth", r"in pickle files \(consolidated.00.pth\)"),
        ("original/consolidated.00.pth", r"in pickle files \(consolidated.00.pth\)"),
        ("model_index.json", "holds a pipeline of several models"),
        ("Q4_K_M/model.gguf", "but Q4_K_M/model.gguf in it is a model: name that"),
        ("snapshot/config.json", "but snapshot in it is a model: name that"),
        ("tokenizer.json", "has neither model.safetensors nor model.safetensors.index.json"),
    ],
)
def test_folders_of_other_kinds_are_told_by_their_files(folder: Path, name: str, reason: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    for read in (glance, load_model):
        with pytest.raises(ModelFileError, match=reason):
            read(folder)


def test_files_that_no_index_tells_of(folder: Path, tmp_path: Path) -> None:
    """One file under another name, or all parts of a model: which those are their names say."""
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    parts = write_folder(tmp_path / "parts", TinyShape(), num_shards=3)
    (parts / "model.safetensors.index.json").unlink()
    weights = load_model(folder).weights
    assert weights.keys() == load_model(parts).weights.keys()
    second = parts / "model-00002-of-00003.safetensors"
    second.rename(parts / "model-2.safetensors")
    with pytest.raises(ModelFileError, match=r"holds 3 safetensors files \(model-00001-of-00003.*\) and no .*index"):
        load_model(parts)
    (parts / "model-2.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"the file model-00002-of-00003\.safetensors of 3 is missing"):
        load_model(parts)


@pytest.mark.parametrize("target", ["../blobs/gone", "itself"])
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "chat_template.jinja"]
)
def test_links_to_files_that_are_gone(folder: Path, name: str, target: str) -> None:
    """None of them is taken for a file that the model never had."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(name if target == "itself" else target)
    for read in (glance, load_model):
        with pytest.raises(ModelFileError, match=f"{name}: is a link to a file that is gone: fetch the model again"):
            read(folder)


def test_links_to_what_is_not_read(folder: Path) -> None:
    (folder / "pytorch_model.bin").symlink_to("../blobs/gone")
    glance(folder)


@pytest.mark.parametrize("content", [b"\x80\x04\x95\x1d\0\0\0\0\0\0\0}", b"PK\x03\x04\0\0\x08\x08\0\0"])
def test_pickles_under_the_name_of_safetensors(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content + bytes(5000))
    reason = "model.safetensors: is a pickle under another name, which could run code; use safetensors"
    assert reason in refused(folder)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (0, "the file is empty"),
        (4, "is truncated or no safetensors file"),
        (100, "is truncated or no safetensors file"),
        (5000, "is truncated: its tensors end at byte"),
        (-1, "is truncated: its tensors end at byte"),
    ],
)
def test_truncated_weights(folder: Path, size: int, reason: str) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert f"model.safetensors: {reason}" in refused(folder)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'{"', b"{?", "is no safetensors file"),
        (b'"F32"', b'"F64"', "the file is truncated or corrupt"),  # twice as much as there is of the first tensor
    ],
)
def test_corrupt_weights(folder: Path, old: bytes, new: bytes, reason: str) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert f"model.safetensors: {reason}" in refused(folder)


def test_weights_of_mlx_are_named(folder: Path) -> None:
    for field in ({"quantization": {"bits": 4}}, {"quantization": {"bits": 4}, "quantization_config": {"bits": 4}}):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | field))
        with pytest.raises(ModelFileError, match="quantization = … is MLX's way, which is not read"):
            load_model(folder)
