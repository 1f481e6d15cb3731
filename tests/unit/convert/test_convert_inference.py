"""Lists of a message are counted before anything is made of their items; contents may come in parts."""

import pytest

from polyfleet.convert import inference as convert
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.images import Image
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


def test_contents_in_parts() -> None:
    parts = [pb.ContentPart(image=b"file"), pb.ContentPart(text="What is it?")]
    chat = pb.GenerateRequest(messages=[pb.ChatMessage(role="user", parts=parts)])
    assert convert.generate_request(chat).messages[0].content == (Image(b"file"), "What is it?")
    for changes, problem in (
        ({"content": "x"}, r"messages\[0\].content: must be empty where there are parts"),
        ({"parts": [pb.ContentPart()]}, r"messages\[0\].parts\[2\]: must have one of text, image and image_url"),
        ({"parts": [pb.ContentPart(text="a", image=b"b")]}, r"messages\[0\].parts\[2\]: must have one of"),
        ({"parts": [pb.ContentPart(image=b"b", image_url="https://a")]}, r"messages\[0\].parts\[2\]: must have one of"),
        ({"parts": [pb.ContentPart(image_url="ftp://a")]}, r"messages\[0\].parts\[2\].image_url: must be a URL of"),
    ):
        wrong = pb.GenerateRequest()
        wrong.CopyFrom(chat)
        wrong.messages[0].MergeFrom(pb.ChatMessage(**changes))
        with pytest.raises(FieldError, match=problem):
            convert.generate_request(wrong)
