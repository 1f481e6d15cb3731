"""What a worker says of a model that it has not loaded: in a process of its own, at devices that need not be here."""

import json
from pathlib import Path

import pytest
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.serving.inspection import ImaginedSite, InspectionError, InspectionRequest, answer, inspect

SITES = tuple(
    ImaginedSite(accelerator, name, size)
    for accelerator, name, size in (
        ("cpu", "cpu large", 2**33),
        ("cuda", "cuda small", 2**12),
        ("abacus", "abacus", 2**30),
    )
)


async def test_a_model_is_described_at_every_site(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model", TinyShape())
    asked = InspectionRequest(str(model), {"context_length": 32}, SITES)
    found = json.loads(await inspect(asked))
    assert found == json.loads(bytes(answer(asked).inspection))
    assert (found["architecture"], found["path"]) == ("Llama", str(model))
    large, small, unknown = found["fits"]
    assert (large["device"], large["problem"], large["context_length"]) == ("cpu large", "", 32)
    assert large["weight_bytes"] > 0 < large["kv_bytes_per_token"]
    assert "the weights take" in small["problem"]
    assert small["changes"]
    assert "abacus" in unknown["problem"]


@pytest.mark.parametrize("source", ["none", "a\0b"])
async def test_what_is_not_there_is_refused_with_the_reason(tmp_path: Path, source: str) -> None:
    with pytest.raises(InspectionError, match=r"^The model .+: there is no such file or folder\.$"):
        await inspect(InspectionRequest(f"{tmp_path}/{source}", {}, ()))


def test_what_is_no_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    reply = answer(InspectionRequest(str(tmp_path), {}, ()))
    assert reply.problem.startswith(f"The model {tmp_path}: ")
    assert bytes(reply.inspection) == b"null"
