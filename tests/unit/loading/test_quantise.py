"""A folder written anew in 4 or 8 bits: what others read of it, and that it loads again."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import SafetensorError
from safetensors.torch import load_file
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_models import Array, TinyShape, random_tensors, write_folder

from polyfleet.cli.main import cli
from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.progress import silent
from polyfleet.loading.quantise import quantise_folder

SHAPE = TinyShape(layers=1, hidden=64, intermediate=192, tied=True)
STEPS = {4: 7, 8: 127}  # from 0 to the largest of a group


def unpacked(tensors: Mapping[str, torch.Tensor], name: str, bits: int, group: int) -> Array:
    """As compressed-tensors says: words of codes from their low ends on, which count from the middle."""
    words = tensors[f"{name}_packed"].numpy().view(np.uint32)
    codes = np.stack(
        [words >> np.uint32(bits * place) & np.uint32(2**bits - 1) for place in range(32 // bits)], axis=-1
    )
    scales = tensors[f"{name}_scale"].float().numpy().repeat(group, axis=1)
    numbers: Array = (codes.reshape(len(words), -1).astype(np.int64) - 2 ** (bits - 1)) * scales
    assert tensors[f"{name}_shape"].tolist() == list(numbers.shape)
    return numbers


@pytest.mark.parametrize(("bits", "num_shards"), [(4, 1), (8, 3)])
def test_a_folder_that_is_read_again(bits: int, num_shards: int, tmp_path: Path) -> None:
    source, target = write_folder(tmp_path / "model", SHAPE, num_shards=num_shards), tmp_path / "small"
    (source / "tokenizer_config.json").write_text("{}")
    (source / "modeling.py").write_text("raise SystemExit")
    shares: list[float] = []
    written = quantise_folder(source, target, bits, 0, shares.append)
    assert (written.group, written.quantised, shares[-1]) == (64, 7, 1.0)
    assert (target / "tokenizer_config.json").is_file()
    assert not (target / "modeling.py").exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "small"]
    tensors = {name: each for file in target.glob("*.safetensors") for name, each in load_file(file).items()}
    assert sum(each.nbytes for each in tensors.values()) == written.bytes_after < written.bytes_before
    weights, wide = load_model(target).weights, random_tensors(SHAPE)
    for theirs, ours in {"self_attn.q_proj": "q", "mlp.down_proj": "down"}.items():
        name, weight = f"model.layers.0.{theirs}.weight", weights[f"layers.0.{ours}"]
        numbers = unpacked(tensors, name, bits, 64)
        assert weight.format == f"INT{bits}"
        np.testing.assert_allclose(dequantise(weight, torch.float32).numpy(), numbers, rtol=1e-6)
        peaks = np.abs(wide[name]).reshape(len(numbers), -1, 64).max(-1).repeat(64, axis=1)
        error = np.abs(numbers - wide[name])
        assert np.all(error <= peaks * (0.21 if bits == 4 else 0.51 / 127)), (
            "ranges of 4 bits shrink by a fifth at most"
        )
        assert np.sqrt(np.mean(error**2)) < 0.35 * np.mean(peaks) / STEPS[bits]
    stated = json.loads((target / "config.json").read_text())["quantization_config"]
    assert (stated["quant_method"], stated["format"], stated["ignore"]) == (
        "compressed-tensors", "pack-quantized", ["lm_head", "model.embed_tokens"]
    )  # fmt: skip


def test_experts_of_a_stack_are_written_one_by_one(tmp_path: Path) -> None:
    """gpt-oss has them columns first, gates and ups in turn; their biases stay as they are."""
    source, target = tmp_path / "model", tmp_path / "small"
    make(TINY["gpt-oss"], source)
    written = quantise_folder(source, target, 8, 0, silent)
    assert (written.group, written.quantised) == (32, 4 * (4 + 3 * 4))
    names = set(load_file(target / "model.safetensors"))
    assert {f"model.layers.3.mlp.experts.2.{each}_proj.weight_packed" for each in ("gate", "up", "down")} < names
    wide, small = load_model(source).weights, load_model(target).weights
    assert wide.keys() == small.keys()
    for name, weight in small.items():
        assert weight.format == ("INT8" if name.rpartition(".")[2] in (*"qkvo", "gate", "up", "down") else "F32"), name
        expected = wide[name].data.numpy()
        found = dequantise(weight, torch.float32).numpy()
        np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() * 0.51 / 127, rtol=0, err_msg=name)


def refused(source: Path, target: Path, group: int = 0) -> str:
    """The reason; nothing is left of the attempt."""
    before = sorted(target.parent.iterdir())
    with pytest.raises(ModelFileError) as caught:
        quantise_folder(source, target, 4, group, silent)
    assert sorted(target.parent.iterdir()) == before
    return str(caught.value)


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("polyfleet.loading.quantise.save_file", full)
    source, target = write_folder(tmp_path / "model", SHAPE), tmp_path / "small"
    result = CliRunner().invoke(cli, ("quantize", str(source), str(target), "--to", "int8"))
    assert (result.exit_code, result.stdout) == (1, "")
    problem = "can't be written: I/O error: No space left on device (os error 28)."
    assert result.stderr.splitlines()[-1] == f"Error: {target} {problem}"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model"]


def test_what_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    source, target = write_folder(tmp_path / "model", SHAPE), tmp_path / "small"
    assert "groups of 128 columns don't divide rows of 64, 192" in refused(source, target, 128)
    assert "is there already, and is no empty folder" in refused(source, source)
    tensors = random_tensors(SHAPE)
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = np.nan
    broken = write_folder(tmp_path / "broken", SHAPE, tensors)
    assert "'model.layers.0.mlp.up_proj.weight' holds numbers that are not finite" in refused(broken, target)
    make(TINY["gpt2"], columns_first := tmp_path / "gpt2")
    assert "has no matrices of layers, one by one, that could be quantised" in refused(columns_first, target)
    target.mkdir()
    quantise_folder(source, target, 4, 32, silent)
    assert "is quantised already (compressed-tensors)" in refused(target, tmp_path / "again")
