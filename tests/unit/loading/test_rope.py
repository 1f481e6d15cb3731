"""Inverse frequencies and Llama 3's scaling, by hand and against transformers' values."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_architectures import TINY, configuration

from polyfleet.loading.folder.config import read_config
from polyfleet.models.errors import ModelFileError
from polyfleet.models.fields import Fields
from polyfleet.models.folder_rope import read_rope
from polyfleet.models.rope import Llama3Scaling, inverse_frequencies, scale_llama3

# What Llama 3.1 8B's own configuration gives (head_dim 128, base 500,000), computed by transformers 5.24.
LLAMA_31 = Llama3Scaling(factor=8.0, low_factor=1.0, high_factor=4.0, original_context=8192)
LLAMA_31_VALUES = {0: 1.0, 20: 0.01656044, 30: 0.0013718937, 40: 3.4281024e-05, 63: 3.0689259e-07}


def test_base_ten_thousand() -> None:
    assert inverse_frequencies(8, 10_000.0) == pytest.approx((1.0, 0.1, 0.01, 0.001))


def test_llama_31() -> None:
    found = scale_llama3(inverse_frequencies(128, 500_000.0), LLAMA_31)
    assert {index: found[index] for index in LLAMA_31_VALUES} == pytest.approx(LLAMA_31_VALUES, rel=1e-6)


def test_llama3_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    scaling = Llama3Scaling(factor=8.0, low_factor=1.0, high_factor=4.0, original_context=1000)
    short, long = 2 * math.pi / 249, 2 * math.pi / 1001
    middle = 2 * math.pi / 400  # 2.5 turns in the original context: half-way between 1 and 4
    found = scale_llama3((short, long, middle), scaling)
    assert found == pytest.approx((short, long / 8, (middle + middle / 8) / 2))


@pytest.mark.parametrize("scales", [{}, {"mscale": 1.0, "mscale_all_dim": 0.0}, {"mscale": None, "mscale_all_dim": 1}])
def test_yarn_whose_scales_are_none(scales: dict[str, float | None]) -> None:
    """A scale of 0 is none, as in transformers: the amplitude is that of the factor."""
    stated = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, **scales}
    fields = Fields("config.json", {"max_position_embeddings": 256, "rope_parameters": stated})
    assert read_rope(fields, 16).amplitude == pytest.approx(1 + 0.1 * math.log(4))


SHARE, BASE = "partial_rotary_factor", "rope_theta"
PARTIAL = [name for name, tiny in TINY.items() if SHARE in getattr(configuration(tiny), "rope_parameters", {})]


def stated(name: str, **more: Any) -> dict[str, Any]:
    config: dict[str, Any] = configuration(TINY[name]).to_dict()
    return config | {"architectures": []} | more


def frequencies(folder: Path, config: dict[str, Any]) -> tuple[float, ...]:
    (folder / "config.json").write_text(json.dumps(config))
    return read_config(folder)[1].inverse_frequencies


@pytest.mark.parametrize("name", PARTIAL)
def test_numbers_in_the_section_beside_it_or_in_both(tmp_path: Path, name: str) -> None:
    """All that a configuration may look like, whichever release of transformers saved it, comes to the same."""
    within = stated(name)
    section = within["rope_parameters"]
    numbers = {key: section[key] for key in (SHARE, BASE)}
    both = within | numbers
    beside = both | {"rope_parameters": {key: each for key, each in section.items() if key not in numbers}}
    older = {key: each for key, each in beside.items() if key != "rope_parameters"}
    if section["rope_type"] != "default":
        older["rope_scaling"] = beside["rope_parameters"]
    width = within.get("head_dim") or within["hidden_size"] // within["num_attention_heads"]
    expected = frequencies(tmp_path, within)
    assert len(expected) == int(width * section[SHARE]) // 2
    assert [frequencies(tmp_path, each) for each in (both, beside, older)] == [expected] * 3


@pytest.mark.parametrize(("key", "other"), [(SHARE, 0.75), (BASE, 5e5)])
@pytest.mark.parametrize("name", PARTIAL)
def test_numbers_that_contradict_each_other(tmp_path: Path, name: str, key: str, other: float) -> None:
    with pytest.raises(ModelFileError, match=rf"rope_parameters: {key} = .* contradicts the {other:g} "):
        frequencies(tmp_path, stated(name, **{key: other}))
