"""Benchmarks of cards: the folders that they write, and what they make of the times of streams."""

from pathlib import Path

import pytest
import torch
from bench.card.apart import Found, rows
from bench.card.ranks import gap
from bench.card.shapes import SHAPES, random_model, write_model

from polyfleet.loading.load import load_model


def test_a_written_model_is_the_one_that_is_made_on_the_device(tmp_path: Path) -> None:
    made = random_model(SHAPES["tiny"], "cpu")
    read = load_model(write_model(SHAPES["tiny"], tmp_path / "model", "cpu"))
    assert read.weights.keys() == made.weights.keys()
    for name, weight in made.weights.items():
        assert torch.equal(read.weights[name].data.reshape(weight.rows, weight.columns), weight.data), name
    assert (read.config.vocabulary_size, read.config.num_layers) == (512, 2)
    assert read.tokenizer is not None


def test_gaps_and_throughput_are_compared_the_right_way_round() -> None:
    together = Found([0.01] * 98 + [0.1] * 2, [0.2, 0.2], tokens=200, seconds=2.0)
    apart = Found([0.02] * 100, [0.4, 0.4], tokens=190, seconds=2.0)
    found = {row.name: row for row in rows(apart.figures(), together.figures(), 7.5)}
    assert found["card_apart_most_requests"].value == 7.5
    p99, throughput = found["card_apart_gap_p99"], found["card_apart_tokens_per_second"]
    assert (p99.value, p99.peer_value) == (0.02, 0.1)
    assert p99.ratio == pytest.approx(5.0)  # over 1: apart is better
    assert (throughput.value, throughput.peer_value) == (95.0, 100.0)
    assert throughput.ratio == pytest.approx(0.95)
    assert found["card_apart_first_p50"].ratio == pytest.approx(0.5)


def test_ranks_are_compared_by_their_likeliest_tokens() -> None:
    ones = [{7: -0.1, 3: -2.5, 9: -4.0, 1: -9.0}, {5: -0.7, 6: -0.9, 8: -3.0}]
    assert gap(ones, [{3: -2.25, 7: -0.1, 9: -4.0, 1: -1.0}, dict(ones[1])]) == 0.25  # the fourth is not looked at
    assert gap(ones, [dict(ones[0]), {5: -0.7, 6: -0.9}]) == float("inf")
