"""GGUF files: what is read, and one sentence for each way in which a file can be bad."""

import contextlib
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.tiny_models import TinyShape, write_gguf

from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import WeightFormat
from polyfleet.loading.gguf.file import read_gguf
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel, ModelFileError

SHAPE = TinyShape()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "good.gguf"
    write_gguf(path, SHAPE, "Q8_0")
    return path


def refused(path: Path) -> str:
    """The message, which names the file and is one sentence on one line."""
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def changed(good: Path, tmp_path: Path, change: Callable[[bytearray], Any]) -> Path:
    data = bytearray(good.read_bytes())
    change(data)
    path = tmp_path / "changed.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("form", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_weights_stay_in_their_format_and_rows_of_q_and_k_are_half_split(form: str, tmp_path: Path) -> None:
    stored = write_gguf(tmp_path / "model.gguf", SHAPE, form)
    model = load_model(tmp_path / "model.gguf")
    names = {"self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "mlp.down_proj": "down"}
    for theirs, ours in names.items():
        weight = model.weights[f"layers.1.{ours}"]
        assert weight.format == WeightFormat(form)
        found = dequantise(weight, torch.float32).numpy()
        np.testing.assert_array_equal(found, stored[f"model.layers.1.{theirs}.weight"])
    assert len(model.weights) == len(stored)


def test_biases_of_q_and_k_are_half_split(tmp_path: Path) -> None:
    shape = TinyShape(attention_bias=True, mlp_bias=True)
    stored = write_gguf(tmp_path / "model.gguf", shape, "Q8_0")
    model = load_model(tmp_path / "model.gguf")
    assert model.config.attention_bias
    assert model.config.mlp_bias
    for theirs, ours in {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}.items():
        found = model.weights[f"layers.0.{ours}.bias"].data.flatten().numpy()
        np.testing.assert_array_equal(found, stored[f"model.layers.0.self_attn.{theirs}.bias"])


def test_configuration(good: Path) -> None:
    shares: list[float] = []
    model = load_model(good, shares.append)
    config = model.config
    assert (config.architecture, config.name, config.vocabulary_size) == ("llama", "tiny", 96)
    assert (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads) == (64, 2, 4, 2)
    assert (config.head_dim, config.intermediate_size, config.context_length) == (16, 96, 256)
    assert config.norm_eps == pytest.approx(1e-5)
    assert not config.tied_embeddings
    assert model.tokenizer is None
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_model_without_output_matrix_is_tied(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", TinyShape(tied=True))
    model = load_model(tmp_path / "model.gguf")
    assert model.config.tied_embeddings
    assert "lm_head" not in model.weights


def test_quantised_weights_are_mapped_not_read(good: Path) -> None:
    """Views of one mapping lie as far apart as in the file."""
    file = read_gguf(str(good))
    places = [file.tensors[f"blk.{layer}.ffn_down.weight"].offset for layer in (0, 1)]
    model: LoadedModel = load_model(good)
    first, second = (model.weights[f"layers.{layer}.down"].data.data_ptr() for layer in (0, 1))
    assert second - first == places[1] - places[0]


def test_writing_to_weights_leaves_the_file_alone(good: Path) -> None:
    before = good.read_bytes()
    load_model(good).weights["layers.0.down"].data.zero_()
    assert good.read_bytes() == before


def test_linear_rope_scaling(tmp_path: Path) -> None:
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=extra)
    frequencies = load_model(tmp_path / "model.gguf").config.inverse_frequencies
    assert frequencies == pytest.approx([10000 ** (-i / 8) / 4 for i in range(8)])


def test_rope_factors_divide_frequencies(tmp_path: Path) -> None:
    factors = np.array([1, 1, 1, 2, 4, 8, 8, 8], dtype=np.float32)
    write_gguf(tmp_path / "model.gguf", SHAPE, tensors={"rope_freqs.weight": factors})
    frequencies = load_model(tmp_path / "model.gguf").config.inverse_frequencies
    assert frequencies == pytest.approx([10000 ** (-i / 8) / factor for i, factor in enumerate(factors)])


def test_no_such_file(tmp_path: Path) -> None:
    assert "there is no such file or folder" in refused(tmp_path / "absent.gguf")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    assert "the file is empty" in refused(tmp_path / "empty.gguf")


def test_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "is Git's note of a large file, not the file: fetch it with `git lfs pull`" in refused(
        tmp_path / "model.gguf"
    )
    (tmp_path / "model.gguf").write_text("PK")
    assert "is not a GGUF file" in refused(tmp_path / "model.gguf")


@pytest.mark.parametrize("size", [3, 10, 24, 300, 2000, 2500])
def test_truncated_header(good: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(good.read_bytes()[:size])
    assert "is truncated" in refused(path)


@pytest.mark.parametrize("missing", [1, 5000])
def test_truncated_data(good: Path, tmp_path: Path, missing: int) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(good.read_bytes()[:-missing])
    assert "is truncated: tensor" in refused(path)


def test_old_version_and_big_endian(good: Path, tmp_path: Path) -> None:
    for version in (1, 3 << 24):
        path = changed(good, tmp_path, lambda data, version=version: struct.pack_into("<I", data, 4, version))  # type: ignore[misc]
        assert f"GGUF version {version} is not supported" in refused(path)


@pytest.mark.parametrize("offset", [8, 16])
def test_absurd_counts_end_at_the_end_of_the_file(good: Path, tmp_path: Path, offset: int) -> None:
    path = changed(good, tmp_path, lambda data: struct.pack_into("<Q", data, offset, 2**62))
    refused(path)


def test_absurd_string_length(good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path, lambda data: struct.pack_into("<Q", data, 24, 2**63))
    assert "is truncated" in refused(path)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_headers_load_or_are_refused(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Flipped bytes anywhere in the header: never another exception, never endless work."""
    header = 3200
    places = data.draw(st.lists(st.integers(4, header), min_size=1, max_size=4))
    values = data.draw(st.lists(st.integers(0, 255), min_size=len(places), max_size=len(places)))

    def damage(content: bytearray) -> None:
        for place, value in zip(places, values, strict=True):
            content[place] = value

    with contextlib.suppress(ModelFileError):
        load_model(changed(good, tmp_path, damage))


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"llama.embedding_length": 128}, "the configuration says"),
        ({"llama.attention.head_count_kv": 3}, "4 heads can't share 3 KV heads evenly"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count must be 1 to"),
        ({"llama.block_count": 3}, "the tensor for 'layers.2.attention_norm' is missing"),
        ({"llama.block_count": 2**31 - 1}, "block_count must be 1 to 4096, not 2147483647"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "must be a finite number over 0, not nan"),
        ({"llama.rope.freq_base": float("inf")}, "must be a finite number over 0, not inf"),
        ({"llama.rope.dimension_count": 7}, "rotating 7 of 16 dimensions"),
        ({"llama.rope.scaling.type": "ntk"}, "rope scaling 'ntk' is not supported"),
        ({"llama.context_length": "long"}, "llama.context_length must be a whole number, not 'long'"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"llama.expert_count": 2, "llama.expert_used_count": 3}, "a row can't go to 3 of 2 experts"),
        (
            {"llama.expert_count": 2, "llama.expert_used_count": 1},
            "the tensor for 'layers.0.router' is missing",
        ),
        ({"general.architecture": "mamba"}, "the architecture 'mamba' is not supported; the nearest that are: llama, "),
        ({"llama.vocab_size": 97}, "vocab_size is 97, but the embedding has 96 rows"),
        ({"tokenizer.ggml.eos_token_id": 96}, "end token 96 is outside the vocabulary of 96"),
        ({"general.alignment": 12}, "general.alignment must be a multiple of 8"),
    ],
)
def test_bad_metadata(tmp_path: Path, extra: dict[str, Any], reason: str) -> None:
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=extra)
    assert reason in refused(tmp_path / "model.gguf")


def test_missing_metadata(good: Path, tmp_path: Path) -> None:
    key = b"llama.context_length"
    path = changed(good, tmp_path, lambda data: data.__setitem__(slice(0, None), data.replace(key, key[:-1] + b"x")))
    assert "llama.context_length is missing" in refused(path)


def test_missing_and_unexpected_tensors(tmp_path: Path) -> None:
    write_gguf(tmp_path / "less.gguf", SHAPE, without=("blk.1.ffn_up.weight",))
    assert "the tensor for 'layers.1.up' is missing" in refused(tmp_path / "less.gguf")
    write_gguf(tmp_path / "more.gguf", SHAPE, tensors={"blk.0.attn_q_norm.weight": np.ones(16, np.float32)})
    assert "tensor 'blk.0.attn_q_norm.weight' is of no use" in refused(tmp_path / "more.gguf")


def test_misshapen_tensor(tmp_path: Path) -> None:
    name = "blk.0.attn_norm.weight"
    write_gguf(tmp_path / "model.gguf", SHAPE, without=(name,), tensors={name: np.ones(63, np.float32)})
    reason = "the tensor for 'layers.0.attention_norm' is 1 x 63, the configuration says 1 x 64"
    assert reason in refused(tmp_path / "model.gguf")


def test_unsupported_quantisation(good: Path, tmp_path: Path) -> None:
    name = b"blk.0.ffn_up.weight"

    def change(data: bytearray) -> None:
        place = data.index(name) + len(name) + 4 + 2 * 8
        assert struct.unpack_from("<I", data, place)[0] == gguf.GGMLQuantizationType.Q8_0
        struct.pack_into("<I", data, place, gguf.GGMLQuantizationType.I16)

    reason = "tensor 'blk.0.ffn_up.weight' has the unsupported type I16 (supported: BF16, F16, F32, IQ1_M, IQ1_S"
    assert reason in refused(changed(good, tmp_path, change))


def test_tensors_that_overlap(good: Path, tmp_path: Path) -> None:
    name = b"blk.0.ffn_up.weight"

    def change(data: bytearray) -> None:
        struct.pack_into("<Q", data, data.index(name) + len(name) + 4 + 2 * 8 + 4, 0)

    assert re.search(r"tensors '.*' and '.*' overlap", refused(changed(good, tmp_path, change)))


@pytest.mark.parametrize("count", [0, 1])
def test_a_merged_file_is_whole(tmp_path: Path, count: int) -> None:
    """`llama-gguf-split --merge` leaves a count of 0."""
    write_gguf(tmp_path / "model.gguf", SHAPE, extra={"split.no": 0, "split.count": count, "split.tensors.count": 21})
    assert load_model(tmp_path / "model.gguf").config.num_layers == SHAPE.layers
