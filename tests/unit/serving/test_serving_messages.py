"""Frames between worker and engine process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyfleet.engine.facts import EngineFacts, EngineStatus
from polyfleet.serving.messages import (
    HEADER_BYTES,
    Add,
    Cancel,
    Command,
    Event,
    Failed,
    Load,
    Loaded,
    Loading,
    Refusal,
    StepNews,
    decode_event,
    frame,
    take_commands,
)
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.sampling import SamplingParams

COMMANDS: list[Command] = [
    Load("/m.gguf", EngineOptions(device="cpu", threads=2)),
    Add(
        SequenceRequest(
            "1:a",
            (1, 2**31),
            SamplingParams(0.5, 0.9, 3, 0.1, 2**64 - 1, 1.1, 0.2, -0.3),
            max_tokens=7,
            generated_ids=(4,),
            stop_token_ids=(9, 8),
            logit_bias={5: -0.5},
            logprobs=0,
            pooling=Pooling.LAST,
        )
    ),
    Cancel("1:a", 3),
]
UPDATE = SequenceUpdate(
    "1:a", (SampledToken(5, -0.5, (1, 2), (-0.1, -0.2)),), FinishReason.STOP, "", 3, 0.25, (1.0, 2.0)
)
EVENTS: list[Event] = [
    Loading(0.5, "reading"),
    Loaded(EngineFacts("m", "llama", 10, 20, 30, 16, 40, 4, "float32", (2,)), "ab", b"{}", EngineStatus()),
    Failed("It broke."),
    StepNews([UPDATE], [Refusal("1:b", "max_tokens: must be 1")], EngineStatus(steps=3, step_seconds=0.5)),
]


@given(st.lists(st.integers(1, 50), min_size=1))
def test_commands_survive_any_cut_of_the_stream(cuts: list[int]) -> None:
    stream = b"".join(map(frame, COMMANDS))
    buffer, seen = bytearray(), []
    position = 0
    while position < len(stream):
        size = cuts[position % len(cuts)]
        buffer += stream[position : position + size]
        position += size
        seen += list(take_commands(buffer))
    assert seen == COMMANDS
    assert not buffer


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_come_back_equal(event: Event) -> None:
    assert decode_event(frame(event)[HEADER_BYTES:]) == event


def test_an_impossible_length_is_refused() -> None:
    with pytest.raises(ValueError, match="out of step"):
        list(take_commands(bytearray(b"\xff" * 8)))
