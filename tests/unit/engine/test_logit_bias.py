"""Biases of a request on their way to its draws, through the engine."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.batching import make_batcher, request, run_all
from tests.support.fake_executor import VOCABULARY
from tests.unit.engine.test_min_tokens import stopped_early

from polyfleet.engine.batching.checks import check_request
from polyfleet.sampling.masks import BARRED, Masks
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import SequenceRequest


def told(masks: Masks | None) -> dict[int, dict[int, float]]:
    """Biases by row and token."""
    found: dict[int, dict[int, float]] = {}
    if masks is not None:
        for row, token_id, bias in zip(masks.biased_rows, masks.biased_ids, masks.biases, strict=True):
            found.setdefault(int(row), {})[int(token_id)] = float(bias)
    return found


@pytest.mark.parametrize("depth", [1, 3])
def test_every_draw_of_a_sequence_is_told_its_biases(depth: int) -> None:
    batcher, executor = make_batcher(depth=depth)
    batcher.add(replace(request(1, 5, 6), logit_bias={7: -2.5, 3: 100.0}))
    batcher.add(replace(request(2, 5, 9)))
    run_all(batcher)
    rows = [told(each) for each in executor.masks]
    assert sum(each == {0: {7: -2.5, 3: 100.0}} for each in rows) == 6
    assert all(len(each) <= 1 for each in rows)


def test_ends_are_barred_beside_them() -> None:
    early = stopped_early(1, 4)
    (stop,) = early.stop_token_ids
    other = (stop + 1) % VOCABULARY
    batcher, executor = make_batcher(depth=1)
    batcher.add(replace(early, logit_bias={stop: 100.0, other: 0.5}))
    run_all(batcher)
    rows = [told(each)[0] for each in executor.masks]
    assert rows[:4] == [{stop: BARRED, other: 0.5}] * 4
    assert rows[4:] == [{stop: 100.0, other: 0.5}] * len(rows[4:])
    assert rows[4:]


@pytest.mark.parametrize(
    ("biases", "problem"),
    [
        ({VOCABULARY: 1.0}, f"logit_bias: must be below the vocabulary size {VOCABULARY}, not {VOCABULARY}"),
        ({-1: 1.0}, "logit_bias: must be below the vocabulary size"),
        ({3: 100.5}, r"logit_bias\[3\]: must be from -100 to 100, not 100.5"),
        ({3: -np.inf}, r"logit_bias\[3\]: must be a finite number, not -inf"),
        ({3: np.nan}, r"logit_bias\[3\]: must be a finite number, not nan"),
        (dict.fromkeys(range(301), 1.0), "logit_bias: must be at most 300, not 301"),
    ],
)
def test_what_biases_may_be(biases: dict[int, float], problem: str) -> None:
    with pytest.raises(FieldError, match=problem):
        check_request(SequenceRequest("s", (1,), logit_bias=biases), max(VOCABULARY, 301 if len(biases) > 300 else 0))
    check_request(SequenceRequest("s", (1,), logit_bias={0: -100.0, VOCABULARY - 1: 100.0}), VOCABULARY)
