"""What can be no model is told at once, by what of it is wrong."""

import json
import struct
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest
from tests.support.tiny_models import TinyShape, random_tensors, write_folder, write_gguf

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
        ({"config.json": b"[", "model.safetensors": WEIGHTS}, "is not valid JSON"),
        ({"config.json": b"{}"}, "neither model.safetensors nor"),
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "pickle files"),
        ({"config.json": b"{}", "model.safetensors": POINTER}, "git lfs pull"),
        ({"config.json": b"{}", "model.safetensors": WEIGHTS[:-1]}, "is truncated or no safetensors file"),
        ({"config.json": b"{}", "model.safetensors": weights(b"{}]")}, "is no safetensors file"),
        ({"config.json": b"{}", "model.safetensors": weights(b'{"a": {}}')}, "is no safetensors file"),
        ({"config.json": b"{}", "model.safetensors": weights(b"[" * 100_000)}, "is no safetensors file"),
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


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported; the nearest that are: Bamba"),
        (
            {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModel": "own.Own"}},
            "OwnForCausalLM is not supported; .*; the code that auto_map names is never executed",
        ),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"hidden_act": "relu"}, "the activation 'relu'"),
        ({"rope_parameters": {"rope_type": "own", "rope_theta": 1e4}}, "own"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, r"bits 3 is not supported \(supported: 4, 8\)"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ],
)
def test_what_a_configuration_tells_is_told_at_once(tmp_path: Path, stated: dict[str, Any], problem: str) -> None:
    folder = write_folder(tmp_path, TinyShape())
    (folder / "config.json").write_text(json.dumps(TinyShape().config() | stated))
    with pytest.raises(ModelFileError, match=f"config.json: .*{problem}") as caught:
        glance(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"), [({}, "is missing"), ({"text_config": None}, "is missing"), ({"text_config": 3}, "must be an")]
)
def test_a_text_part_that_is_not_stated(tmp_path: Path, text: dict[str, Any], problem: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS)
    kind = {"architectures": ["Qwen2VLForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(kind | text))
    with pytest.raises(ModelFileError, match=f"config.json: text_config {problem}"):
        glance(tmp_path)


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"general.architecture": "mamba"}, "'mamba' is not supported; the nearest that are: llama"),
        ({"llama.attn_logit_softcapping": 50.0}, "llama.attn_logit_softcapping = 50.0 is not supported"),
        ({"general.type": "adapter"}, "adapter"),
    ],
)
def test_what_a_gguf_header_tells_is_told_at_once(tmp_path: Path, stated: dict[str, Any], problem: str) -> None:
    write_gguf(tmp_path / "m.gguf", TinyShape(), extra=stated)
    with pytest.raises(ModelFileError, match=f"m.gguf: .*{problem}"):
        glance(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("stated", "gone", "problem"),
    [
        ({"vocab_size": 104}, "", "the tensor for 'embedding' is 96 x 64, the configuration says 104 x 64"),
        ({"num_key_value_heads": 1}, "", "the tensor for 'layers.0.k' is 32 x 64, the configuration says 16 x 64"),
        ({"intermediate_size": 90}, "", "the tensor for 'layers.0.gate' is 96 x 64, the configuration says 90 x 64"),
        ({"num_hidden_layers": 3}, "", "the tensor for 'layers.2.attention_norm' is missing"),
        ({"num_hidden_layers": 90}, "", "states 90 layers but holds only 21 tensors"),
        ({"eos_token_id": 96}, "", "end token 96 is outside the vocabulary of 96"),
        ({}, "model.norm.weight", "the tensor for 'norm' is missing"),
        ({}, "model.layers.1.mlp.up_proj.weight", "the tensor for 'layers.1.up' is missing"),
    ],
)
def test_tensors_that_contradict_the_configuration_are_told_of_at_once(
    tmp_path: Path, stated: dict[str, Any], gone: str, problem: str
) -> None:
    tensors = {name: each for name, each in random_tensors(TinyShape()).items() if name != gone}
    folder = write_folder(tmp_path, TinyShape(), tensors)
    (folder / "config.json").write_text(json.dumps(TinyShape().config() | stated))
    with pytest.raises(ModelFileError, match=problem) as caught:
        glance(folder)
    assert "\n" not in str(caught.value)


def test_a_type_that_is_not_read_is_told_of_at_once(tmp_path: Path) -> None:
    tensors = random_tensors(TinyShape())
    folder = write_folder(tmp_path, TinyShape(), tensors | {"model.norm.weight": np.ones(64, np.int8)})
    with pytest.raises(ModelFileError, match=r"tensor 'model\.norm\.weight' has the unsupported type I8"):
        glance(folder)


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"llama.block_count": 3}, "the tensor for 'layers.2.attention_norm' is missing"),
        ({"llama.feed_forward_length": 90}, "'layers.0.gate' is 96 x 64, the configuration says 90 x 64"),
    ],
)
def test_a_gguf_header_that_contradicts_itself_is_told_of_at_once(
    tmp_path: Path, stated: dict[str, Any], problem: str
) -> None:
    write_gguf(tmp_path / "m.gguf", TinyShape(), extra=stated)
    with pytest.raises(ModelFileError, match=f"m.gguf: .*{problem}"):
        glance(tmp_path / "m.gguf")


def test_what_may_be_a_model_passes(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", TinyShape())
    glance(tmp_path / "m.gguf")
    glance(str(write_folder(tmp_path / "folder", TinyShape())))


def test_a_context_beyond_the_models_own(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", TinyShape())
    for path in (tmp_path / "m.gguf", write_folder(tmp_path / "folder", TinyShape())):
        glance(path, TinyShape().context)
        with pytest.raises(ModelFileError, match=r"its context has 256 tokens, .*: 257 were asked for"):
            glance(path, TinyShape().context + 1)


def test_a_glance_needs_no_torch() -> None:
    """Which takes longer to import than all else that is done before a fleet starts."""
    run([sys.executable, "-c", "import sys, polyfleet.loading.glance; assert 'torch' not in sys.modules"], check=True)


def test_what_is_not_there_or_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no such file or folder"):
        glance(tmp_path / "none")
    with pytest.raises(ModelFileError, match="is neither a file nor a folder"):
        glance("/dev/null")
