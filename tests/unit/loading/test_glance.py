"""What can be no model is told at once, by what of it is wrong."""

import json
import struct
from pathlib import Path

import pytest

from polyfleet.loading.glance import glance
from polyfleet.models.errors import ModelFileError

TENSORS = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


def weights(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


WEIGHTS = weights(b"{}")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("m.gguf", b"", "the file is empty"),
        ("m.gguf", b"hello", "is not a GGUF file"),
        ("m.bin", b"PK\x03\x04", "is not a GGUF file"),
        ("m.gguf", b"GGUF\x03" + bytes(18), "is truncated: the header needs 24 bytes or more, the file has 23"),
        ("m.gguf", POINTER, "git lfs pull"),
        ("model.safetensors", WEIGHTS, "is one file of a Hugging Face folder; name the folder"),
        ("config.json", b"{}", "is one file of a Hugging Face folder; name the folder"),
    ],
)
def test_files(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=f"{name}: .*{problem}"):
        glance(tmp_path / name)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "has no config.json"),
        ({"config.json": b"["}, "is not valid JSON"),
        ({"config.json": b"{}"}, "neither model.safetensors nor"),
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "pickle files"),
        ({"config.json": b"{}", "model.safetensors": POINTER}, "git lfs pull"),
        ({"config.json": b"{}", "model.safetensors": WEIGHTS[:-1]}, "is truncated or no safetensors file"),
        ({"config.json": b"{}", "model.safetensors": weights(b"{}]")}, "is no safetensors file"),
        ({"config.json": b"{}", "model.safetensors": weights(b'{"a": {}}')}, "is no safetensors file"),
        (
            {"config.json": b"{}", "model.safetensors": weights(TENSORS) + b"abc"},
            "is truncated: its tensors end at byte",
        ),
        ({"config.json": b"{}", "model.safetensors": WEIGHTS, "adapter_config.json": b"{}"}, "holds an adapter"),
        (
            {
                "config.json": b"{}",
                "model.safetensors.index.json": json.dumps({"weight_map": {"a": "b.safetensors"}}).encode(),
            },
            "b.safetensors of weight_map is missing",
        ),
    ],
)
def test_folders(tmp_path: Path, files: dict[str, bytes], problem: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=problem):
        glance(tmp_path)


def test_what_may_be_a_model_passes(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03" + bytes(19))
    glance(tmp_path / "m.gguf")
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "model.safetensors").write_bytes(weights(TENSORS) + b"abcd")
    glance(str(tmp_path))


def test_what_is_not_there_or_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no such file or folder"):
        glance(tmp_path / "none")
    with pytest.raises(ModelFileError, match="is neither a file nor a folder"):
        glance("/dev/null")
