"""Benchmarks of cards: the folders that they write, and what they make of the times of streams."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench.card.account import Case, Timed, account, waits
from bench.card.apart import Found, rows
from bench.card.clients import figures
from bench.card.clients import rows as rows_of_clients
from bench.card.online import closed_loop
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


def test_clients_figures_are_over_all_tokens_and_the_whole_time() -> None:
    stamps = [[0.0, 0.5, 0.6, 0.7], [1.0, 1.3, 1.3, 3.0]]  # sent, then each token
    found = figures(stamps)
    assert found.tokens_per_second == pytest.approx(6 / 3.0)
    assert found.gap_p99 == pytest.approx(1.7, rel=0.05)  # from 1.3 to 3.0
    assert found.first_p50 == pytest.approx(0.5)
    rate, *_, first = rows_of_clients([found], [found._replace(tokens_per_second=4.0, first_p99=1.0)], "vllm")
    assert rate.peer == "vllm"
    assert rate.ratio == pytest.approx(0.5)
    assert first.ratio == pytest.approx(1.0 / found.first_p99)
    assert rows_of_clients([found], [], "")[0].ratio is None


async def test_a_closed_loop_keeps_its_clients_busy_until_all_is_asked() -> None:
    running, most, asked = 0, 0, 0

    async def one() -> None:
        nonlocal running, most, asked
        running, asked = running + 1, asked + 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await closed_loop({"requests": 7, "clients": 3}, one)
    assert (asked, most, running) == (7, 3, 0)


def test_ranks_are_compared_by_their_likeliest_tokens() -> None:
    ones = [{7: -0.1, 3: -2.5, 9: -4.0, 1: -9.0}, {5: -0.7, 6: -0.9, 8: -3.0}]
    assert gap(ones, [{3: -2.25, 7: -0.1, 9: -4.0, 1: -1.0}, dict(ones[1])]) == 0.25  # the fourth is not looked at
    assert gap(ones, [dict(ones[0]), {5: -0.7, 6: -0.9}]) == float("inf")


class Executor:
    """Says what is asked of it."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def launch(self, plan: Any) -> Any:
        """Said."""
        self._said.append("launch")

    def draw(self, pending: Any, masks: Any = None) -> None:
        """Said."""
        self._said.append("draw")


def test_all_is_timed_before_any_kernels_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What records them slows its process down from then on."""
    said: list[str] = []

    @contextmanager
    def recording(**_: Any) -> Iterator[Any]:
        said.append("recording")
        span = partial(SimpleNamespace, device_type=SimpleNamespace(name="CUDA"))
        spans = [(0, 500), (400, 1000), (1500, 2000)]  # microseconds
        yield SimpleNamespace(
            events=lambda: [span(name="kernel", time_range=SimpleNamespace(start=a, end=b)) for a, b in spans]
        )

    @contextmanager
    def ready(name: str) -> Iterator[Callable[[], Any]]:
        yield partial(said.append, name)

    monkeypatch.setattr(torch.profiler, "profile", recording)
    cases = [Case(name, partial(ready, name), 2) for name in "ab"]
    executor: Any = Executor(said)
    found = account(cases, Timed(executor), torch.device("cpu"))
    assert said == [*"aabb", "recording", *"aa", "recording", *"bb"]
    assert [(each.title, each.busy, each.kernels) for each in found] == [
        (name, 0.75, (("kernel", 0.8, 1.5),)) for name in "ab"
    ]


def test_a_device_waits_for_the_host_between_steps_and_not_within_them() -> None:
    said: list[str] = []
    executor: Any = Executor(said)
    timed = Timed(executor)
    timed.event = lambda: SimpleNamespace(record=lambda: said.append("mark"))
    timed.marks = []
    timed.draw(timed.launch(None))  # type: ignore[arg-type]
    assert said == ["mark", "launch", "draw", "mark"]

    class Mark:
        def __init__(self, at: float) -> None:
            self.at = at

        def elapsed_time(self, later: "Mark") -> float:
            """Milliseconds until another."""
            return later.at - self.at

    assert waits([Mark(at) for at in (0, 10, 10.5, 20, 20.25, 30)]) == 0.75
