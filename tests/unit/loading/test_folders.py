"""Hugging Face folders: what is read, and one sentence for each way in which a folder can be bad."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.support.tiny_models import TinyShape, random_tensors, write_folder
from tests.support.tiny_tokenizers import tokenizer_json
from tokenizers import Tokenizer

from polyfleet.kernels.weights.weight import WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError
from polyfleet.models.registry import record

SHAPE = TinyShape(vocabulary=300)


def refused(folder: Path) -> str:
    """The message, which names a file of the folder and is one sentence on one line."""
    with pytest.raises(ModelFileError) as caught:
        load_model(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message


def edit(path: Path, change: Mapping[str, Any]) -> None:
    """Replace keys of a JSON file; None removes one."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values.update(change)
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", SHAPE)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_weights(tmp_path: Path, num_shards: int) -> None:
    tensors = random_tensors(SHAPE)
    shares: list[float] = []
    model = load_model(write_folder(tmp_path / "model", SHAPE, tensors, num_shards=num_shards), shares.append)
    assert len(model.weights) == len(tensors)
    weight = model.weights["layers.1.q"]
    assert (weight.format, weight.rows, weight.columns) == (WeightFormat.F32, 64, 64)
    np.testing.assert_array_equal(weight.data.numpy(), tensors["model.layers.1.self_attn.q_proj.weight"])
    norm = model.weights["norm"]
    assert (norm.rows, norm.columns) == (1, 64)
    assert shares == sorted(shares)
    placed, read, end = shares[: len(tensors)], shares[len(tensors) : -1], shares[-1]  # each tensor is told twice
    assert (placed[-1], read[0], len(read), end) == (0.5, 0.5, len(tensors), 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_weights_stay_as_they_are(folder: Path, dtype: torch.dtype) -> None:
    tensors = {name: torch.from_numpy(data).to(dtype) for name, data in random_tensors(SHAPE).items()}
    save_file(tensors, folder / "model.safetensors")
    weight = load_model(folder).weights["layers.0.down"]
    assert torch.equal(weight.data, tensors["model.layers.0.mlp.down_proj.weight"])


def test_configuration(folder: Path) -> None:
    config = load_model(folder).config
    assert (config.architecture, config.name, config.vocabulary_size) == ("llama", "model", 300)
    assert (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads) == (64, 2, 4, 2)
    assert (config.head_dim, config.intermediate_size, config.context_length) == (16, 96, 256)
    assert config.end_token_ids == (2,)


def test_older_files_state_rope_and_leave_out_what_is_usual(folder: Path) -> None:
    rope = {"type": "linear", "factor": 2.0}
    change = {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": rope, "head_dim": None, "mlp_bias": None}
    edit(folder / "config.json", change)
    config = load_model(folder).config
    assert config.head_dim == 16
    assert config.inverse_frequencies == pytest.approx([500 ** (-i / 8) / 2 for i in range(8)])


def test_end_tokens_are_those_of_both_configurations(folder: Path) -> None:
    edit(folder / "generation_config.json", {"eos_token_id": [5, 7, 5]})
    assert load_model(folder).config.end_token_ids == (5, 7, 2)
    edit(folder / "generation_config.json", {"eos_token_id": None})
    assert load_model(folder).config.end_token_ids == (2,)
    edit(folder / "config.json", {"eos_token_id": None})
    assert load_model(folder).config.end_token_ids == ()


def test_tied_models_ignore_a_stored_head(tmp_path: Path) -> None:
    shape, tensors = TinyShape(tied=True), random_tensors(TinyShape())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()  # another one is refused
    model = load_model(write_folder(tmp_path / "model", shape, tensors))
    assert "lm_head" not in model.weights
    assert record(model.config, model.weights).ops[-1].weights == ("embedding",)


def test_no_tokenizer(folder: Path) -> None:
    assert load_model(folder).tokenizer is None


def document(folder: Path) -> dict[str, Any]:
    assets = load_model(folder).tokenizer
    assert assets is not None
    values: dict[str, Any] = json.loads(assets.document)
    return values


def test_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    settings = {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}, "chat_template": "from the settings"}
    edit(folder / "tokenizer_config.json", settings)
    found = document(folder)
    assert found["chat_template"] == "from the settings"
    assert (found["bos_token"], found["eos_token"], found["add_bos"]) == ("<|start|>", "<|end|>", True)
    assert found["end_token_ids"] == [2, 1]  # of config.json, of the tokenizer
    tokenizer = Tokenizer.from_str(json.dumps(found["tokenizer"]))
    ids = tokenizer.encode("longer than the file's truncation", add_special_tokens=True).ids
    assert tokenizer.decode(ids) == "longer than the file's truncation"


def test_bos_is_added_only_if_said_so_or_done_so(folder: Path) -> None:
    content = tokenizer_json()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    edit(folder / "tokenizer_config.json", {"bos_token": "<|start|>", "add_bos_token": False})
    assert document(folder)["add_bos"] is False
    content["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    edit(folder / "tokenizer_config.json", {"add_bos_token": None})
    assert document(folder)["add_bos"] is False
    edit(folder / "tokenizer_config.json", {"add_bos_token": True})
    assert document(folder)["add_bos"] is True
    edit(folder / "tokenizer_config.json", {"bos_token": None})
    assert document(folder)["add_bos"] is False


def test_chat_templates_in_their_three_places(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    assert document(folder)["chat_template"] is None
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}]
    edit(folder / "tokenizer_config.json", {"chat_template": several})
    assert document(folder)["chat_template"] == "usual"
    assert document(folder)["tool_template"] == "tools"
    (folder / "chat_template.jinja").write_text("from its own file")
    assert document(folder)["chat_template"] == "from its own file"
    assert "tool_template" not in document(folder)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools from theirs")
    assert document(folder)["tool_template"] == "tools from theirs"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architectures": ["BloomForCausalLM"]}, "the architecture BloomForCausalLM is not supported"),
        ({"model_type": "mamba", "architectures": None}, "the architecture mamba is not supported"),
        ({"hidden_act": "gelu"}, "the activation 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "the quantisation 'aqlm' is not supported"),
        ({"partial_rotary_factor": 0.5}, "rotating a part of each head"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number, not '64'"),
        ({"num_attention_heads": 0}, "num_attention_heads must be 1 to"),
        ({"num_key_value_heads": 3}, "4 heads can't share 3 KV heads evenly"),
        ({"head_dim": 15}, "heads of 15 dimensions can't be rotated"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number over 0, not nan"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps must be a finite number over 0, not inf"),
        ({"rms_norm_eps": True}, "rms_norm_eps must be a number, not True"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"num_hidden_layers": 3}, "the tensor for 'layers.2.attention_norm' is missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be 1 to 4096, not 1000000000"),
        ({"num_hidden_layers": 1}, "is of no use to a Llama model of this shape"),
        ({"vocab_size": 299}, "the tensor for 'embedding' is 300 x 64, the configuration says 299 x 64"),
        ({"attention_bias": True}, "the tensor for 'layers.0.q.bias' is missing"),
        ({"eos_token_id": 300}, "end token 300 is outside the vocabulary of 300"),
        ({"eos_token_id": ["2"]}, "eos_token_id must be a whole number or a list of them"),
        ({"rope_parameters": {"rope_type": "ntk"}}, "rope scaling 'ntk' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "long_factor is missing"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "factor is missing"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor must be a finite number over 0, not 0"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_parameters": "default"}, "rope_parameters must be an object, not 'default'"),
    ],
)
def test_bad_configuration(folder: Path, change: dict[str, Any], reason: str) -> None:
    edit(folder / "config.json", change)
    assert reason in refused(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff", "[" * 100_000])
def test_configuration_that_is_no_json_object(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content, encoding="latin-1")
    assert "config.json: " in refused(folder)


def test_folder_without_configuration(tmp_path: Path) -> None:
    assert "the folder has no config.json" in refused(tmp_path)


def test_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "the folder has neither model.safetensors nor model.safetensors.index.json" in refused(folder)


def test_pickles_are_never_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "the weights are in pickle files (pytorch_model.bin)" in refused(folder)


def test_adapters_are_not_left_out_in_silence(folder: Path) -> None:
    edit(folder / "adapter_config.json", {"peft_type": "LORA"})
    assert "holds an adapter" in refused(folder)
    (folder / "config.json").unlink()
    assert "holds an adapter (adapter_config.json): serve the model that it adapts" in refused(folder)


def test_weights_of_an_unsupported_type(folder: Path) -> None:
    tensors = {name: torch.from_numpy(data) for name, data in random_tensors(SHAPE).items()}
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")
    assert "tensor 'model.layers.0.mlp.up_proj.weight' has the unsupported type F8_E4M3" in refused(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": None}, "model is missing"),
        ({"model": {"type": "BPE", "vocab": {}}}, "model.vocab must hold the vocabulary"),
        ({"model": {"type": "BPE", "vocab": {"a": 300}}}, "token id 300 is outside the model's vocabulary of 300"),
        ({"model": {"type": "BPE", "vocab": {"a": "0"}}}, "token ids must be whole numbers from 0"),
        ({"added_tokens": [{"id": 999, "content": "x"}]}, "token id 999 is outside the model's vocabulary"),
        ({"added_tokens": ["x"]}, "added_tokens must be a list of objects"),
    ],
)
def test_broken_tokenizer(folder: Path, change: dict[str, Any], reason: str) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    edit(folder / "tokenizer.json", change)
    assert reason in refused(folder)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bos_token": 5}, "bos_token must be a string, not 5"),
        ({"eos_token": {"id": 5}}, "content is missing"),
        ({"chat_template": [{"name": "other", "template": "x"}]}, "chat_template lists no template named 'default'"),
        ({"add_bos_token": 1}, "add_bos_token must be true or false"),
    ],
)
def test_broken_tokenizer_settings(folder: Path, settings: dict[str, Any], reason: str) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    edit(folder / "tokenizer_config.json", settings)
    assert reason in refused(folder)


def test_a_tokenizer_in_another_file_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path, SHAPE)
    (folder / "tokenizer.model").write_bytes(b"")
    assert load_model(folder).tokenizer is None
    assert "tokenizer.model is not read, so the model takes and gives token ids alone" in caplog.text
