"""Lists of a message are counted before anything is made of their items."""

import pytest

from polyfleet.convert import inference as convert
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.limits import FieldError


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (pb.GenerateRequest(text="x", stop=["x"] * 17), "stop: must be at most 16, not 17"),
        (pb.GenerateRequest(text="x", stop_token_ids=[1] * 65), "stop_token_ids: must be at most 64, not 65"),
        (pb.GenerateRequest(text="x", logit_bias=dict.fromkeys(range(301), 0)), "logit_bias: must be at most 300"),
        (pb.GenerateRequest(messages=[pb.ChatMessage()] * 4097), "messages: must be at most 4096, not 4097"),
    ],
)
def test_too_many_items_are_not_converted(message: pb.GenerateRequest, problem: str) -> None:
    with pytest.raises(FieldError, match=problem):
        convert.generate_request(message)
