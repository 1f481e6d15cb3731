"""`Client` and errors: statuses, their details, what is tried again and what is not, answers that break off."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.rpc import code_pb2, error_details_pb2
from tests.support.scripted_inference import Script, fail, two_choices, unavailable

from polyfleet import client as pf
from polyfleet.v1 import inference_pb2 as pb


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (code_pb2.INVALID_ARGUMENT, pf.InvalidArgumentError),
        (code_pb2.UNAUTHENTICATED, pf.UnauthenticatedError),
        (code_pb2.PERMISSION_DENIED, pf.PermissionDeniedError),
        (code_pb2.NOT_FOUND, pf.NotFoundError),
        (code_pb2.RESOURCE_EXHAUSTED, pf.ResourceExhaustedError),
        (code_pb2.ABORTED, pf.AbortedError),
        (code_pb2.DATA_LOSS, pf.DataLossError),
        (code_pb2.CANCELLED, pf.CallCancelledError),
        (code_pb2.INTERNAL, pf.PolyfleetError),
    ],
)
def test_each_status_has_its_error(client: pf.Client, script: Script, code: int, kind: type[pf.PolyfleetError]) -> None:
    script.steps = [fail(code, "because")]
    with pytest.raises(kind) as caught:
        client.generate("hello")
    assert type(caught.value) is kind
    assert caught.value.status == code_pb2.Code.Name(code)  # type: ignore[arg-type,unused-ignore]
    assert caught.value.message == "because"
    assert (caught.value.field_violations, caught.value.retry_after) == ((), None)
    assert len(script.calls) == 1


def test_error_carries_the_details(client: pf.Client, script: Script) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="n", description="must be 1 to 16")
    script.steps = [
        fail(
            code_pb2.INVALID_ARGUMENT, "n: must be 1 to 16", error_details_pb2.BadRequest(field_violations=[violation])
        )
    ]
    with pytest.raises(pf.InvalidArgumentError, match="INVALID_ARGUMENT: n: must be 1 to 16") as caught:
        client.generate("hello", n=99)
    assert caught.value.field_violations == (pf.FieldViolation("n", "must be 1 to 16"),)


def test_unavailable_is_tried_again(client: pf.Client, script: Script) -> None:
    script.steps = [unavailable(None), unavailable(0.01), two_choices]
    assert client.generate("hello").text == "ab"
    assert len(script.calls) == 3


def test_tries_are_bounded_and_the_last_error_tells_the_hint(client: pf.Client, script: Script) -> None:
    script.steps = [unavailable(0.015)]
    with pytest.raises(pf.UnavailableError) as caught:
        client.models()
    assert len(script.calls) == 3
    assert caught.value.retry_after == pytest.approx(0.015)


def test_long_hint_is_raised_not_waited_for(client: pf.Client, script: Script) -> None:
    script.steps = [unavailable(3600)]
    with pytest.raises(pf.UnavailableError) as caught:
        client.generate("hello")
    assert (len(script.calls), caught.value.retry_after) == (1, 3600)


def test_retries_can_be_turned_off(script: Script) -> None:
    script.steps = [unavailable(None), two_choices]
    with pf.Client(script.address, retry=pf.NO_RETRIES) as client, pytest.raises(pf.UnavailableError):
        client.generate("hello")
    assert len(script.calls) == 1


def test_no_retry_after_the_first_message(client: pf.Client, script: Script) -> None:
    def break_off(request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
        yield pb.GenerateResponse(request_id="req-1", worker_id="w-1", text="a", token_ids=[1])
        unavailable(0.01)(request, context)

    script.steps = [break_off, two_choices]
    stream = client.stream("hello")
    assert next(stream).text == "a"
    with pytest.raises(pf.UnavailableError):
        next(stream)
    assert len(script.calls) == 1
    assert stream.transcript.completion().text == "a"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [pb.GenerateResponse(request_id="r", text="a", token_ids=[1])],
        [pb.GenerateResponse(request_id="r", text="a", finish_reason=pb.FINISH_REASON_STOP)],
        [pb.GenerateResponse(request_id="r", text="a", usage=pb.Usage(prompt_tokens=1))],
    ],
)
def test_clean_end_before_the_answer_is_an_error(
    client: pf.Client, script: Script, messages: list[pb.GenerateResponse]
) -> None:
    script.steps = [lambda request, context: iter(messages)]
    with pytest.raises(pf.DataLossError):
        client.generate("hello")


def test_nobody_listening_is_unavailable() -> None:
    with pf.Client("127.0.0.1:1", retry=pf.NO_RETRIES) as client, pytest.raises(pf.UnavailableError):
        client.models()
