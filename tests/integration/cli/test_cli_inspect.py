"""`polyfleet inspect` over tiny models."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_encoders import CROSS_ENCODERS, make_cross_encoder
from tests.support.tiny_kinds import LAYERS
from tests.support.tiny_models import TinyShape, write_folder, write_gguf

from polyfleet.cli.errors import ExitCode
from polyfleet.cli.main import cli
from polyfleet.engine.inspection import Inspection


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["inspect", *map(str, arguments)])


def seen(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = inspect(*arguments, "--json")
    assert done.exit_code == code, done.output
    msgspec.json.decode(done.stdout, type=Inspection)  # as --schema says
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_folder(tmp_path_factory.mktemp("models") / "model", TinyShape())
    (made / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    return made


def test_inspect(folder: Path, tmp_path: Path) -> None:
    found = seen(folder)
    assert (found["name"], found["architecture"], found["tokenizer"]) == ("model", "Llama", None)
    assert (found["licence"], found["quantisation"]) == ("apache-2.0", "")
    assert found["parameters"] == sum(found["formats"].values()) > 0
    cpu = next(each for each in found["fits"] if each["device"] == "cpu")
    assert (cpu["problem"], cpu["changes"]) == ("", [])
    assert 0 < cpu["context_length"] <= found["context_length"]
    assert cpu["weight_bytes"] > 0 < cpu["kv_bytes_per_token"]
    (memory,) = found["memory"]
    assert memory["kind"] == "attention"
    plain = inspect(folder)
    assert "model: Llama" in plain.output
    assert "licence apache-2.0" in plain.output
    assert inspect(tmp_path / "none").exit_code == 2
    assert json.loads(inspect("--schema").output)["$defs"]["Inspection"]["properties"].keys() == found.keys()


def test_what_layers_remember(tmp_path: Path) -> None:
    """Windows, latents and states apart; of tiny shapes."""
    for name, expected in {
        "gemma3": [("attention", 3, 2 * 2 * 16, 12), ("attention", 1, 2 * 2 * 16, 0)],
        "deepseek3": [("latent attention", LAYERS, 32 + 16, 0)],
    }.items():
        make(TINY[name], tmp_path / name)
        found = seen(tmp_path / name)["memory"]
        assert [tuple(each.values()) for each in found] == expected
    make(TINY["qwen3.5"], tmp_path / "states")
    found = seen(tmp_path / "states", "--accelerator", "cuda", "--memory", "80GiB")
    states = next(each for each in found["memory"] if each["kind"] == "state")
    assert states["layers"] * states["numbers"] * 4 == found["fits"][0]["state_bytes_per_sequence"] > 0


def test_a_device_that_is_not_here(folder: Path) -> None:
    found = seen(folder, "--accelerator", "cuda", "--memory", "24GiB", "--context-length", "32")["fits"]
    assert [(each["device"], each["executor"], each["context_length"]) for each in found] == [("cuda", "captured", 32)]
    small = seen(folder, "--accelerator", "ascend", "--memory", "4KiB", code=1)["fits"][0]
    assert "the weights take 0.00 GiB, 0.00 GiB are there" in small["problem"]
    assert "a device with 2 GiB free" in small["changes"]
    words = inspect(folder, "--accelerator", "ascend", "--memory", "4KiB")
    assert words.exit_code == 1
    assert "would fit: a device with 2 GiB free" in words.output
    long = seen(folder, "--memory", "1GiB", "--context-length", 10**6, code=1)["fits"][0]
    assert "context_length: must be at most the model's" in long["problem"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--accelerator", "cuda"), "give --memory to ask of one that is not here"),
        (("--accelerator", "abacus", "--memory", "1G"), "abacus"),
        (("--accelerator", "cpu:7"), "device: must have an index among 0, not cpu:7"),
        (("--memory", "much"), "'much' is no size: write 80GiB, say"),
        (("--memory", "0"), "must be 1 byte or more"),
    ],
)
def test_devices_that_nobody_has(folder: Path, arguments: tuple[str, ...], reason: str) -> None:
    done = inspect(folder, *arguments)
    assert done.exit_code == 2
    assert reason in done.stderr


def test_what_is_kept_dense_and_why(tmp_path: Path) -> None:
    shape = TinyShape(hidden=64, intermediate=64)
    for form in ("Q4_0", "Q8_0"):
        write_gguf(tmp_path / f"{form}.gguf", shape, form)
    cuda = ("--accelerator", "cuda", "--memory", "24GiB")
    for form, device, reason in (
        ("Q4_0", ("--accelerator", "cpu", "--memory", "4GiB"), ""),
        ("Q4_0", (*cuda, "--weights", "dense"), "weights: dense asks for that"),
        ("Q8_0", cuda, "no kernel of this device reads Q8_0 (4 bits and FP8 are read)"),
        ("Q4_0", ("--accelerator", "mps", "--memory", "4GiB"), "no kernels for quantised weights on this device"),
    ):
        (found,) = seen(tmp_path / f"{form}.gguf", *device)["fits"]
        assert found["dequantised_because"].endswith(reason)
        assert bool(found["dequantised"]) == bool(found["dequantised_because"]) == bool(reason)
    assert (
        "quantised matrices are kept dense: no kernel of this device reads Q8_0"
        in inspect(tmp_path / "Q8_0.gguf", *cuda).output
    )


def test_cross_encoders_and_their_tokenizers(tmp_path: Path) -> None:
    make_cross_encoder(CROSS_ENCODERS["bert_cross_encoder"], tmp_path)
    found = seen(tmp_path)
    assert (found["cross_encoder"], found["tokenizer"]["kind"], found["tokenizer"]["tool_calls"]) == (
        True,
        "WordPiece",
        "",
    )
    assert "ranks documents" in inspect(tmp_path).output


@pytest.mark.parametrize("command", ["inspect", "serve"])
@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "the architecture MambaForCausalLM is not supported"),
        ({"vocab_size": 104}, "the tensor for 'embedding' is 96 x 64, the configuration says 104 x 64"),
        ({"num_hidden_layers": 3}, "the tensor for 'layers.2.attention_norm' is missing"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    ],
)
def test_what_can_not_be_loaded_ends_the_command(
    tmp_path: Path, command: str, stated: dict[str, Any], reason: str
) -> None:
    """Before anything is started, by one sentence."""
    path = write_folder(tmp_path / "model", TinyShape())
    (path / "config.json").write_text(json.dumps(TinyShape().config() | stated))
    done = CliRunner().invoke(cli, [command, str(path)])
    assert done.exit_code == ExitCode.BAD_INPUT, done.output
    assert done.stdout == ""
    assert reason in done.stderr.replace("\n", " ")
    assert str(path) in done.stderr.replace("\n", "")
