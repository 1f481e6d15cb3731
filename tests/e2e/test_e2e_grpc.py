"""The public gRPC API of a running stack, called as applications call it."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.support.serve_process import ServeProcess

from polyfleet.cli.stack.settings import MODEL_NAME
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1.inference_pb2_grpc import InferenceStub


def generate(stack: ServeProcess, **fields: object) -> list[pb.GenerateResponse]:
    with grpc.insecure_channel(stack.grpc) as channel:
        request = pb.GenerateRequest(sampling=pb.SamplingParams(temperature=0), **fields)  # type: ignore[arg-type]
        return list(InferenceStub(channel).Generate(request, timeout=120))


def test_generate_streams_from_first_to_last_message(stack: ServeProcess) -> None:
    question = pb.ChatMessage(role="user", content="What is the capital of France? Answer in one word.")
    messages = generate(stack, messages=[question], max_tokens=8, request_id="e2e-1")
    assert len(messages) > 2
    assert messages[0].request_id == "e2e-1"
    assert messages[0].worker_id == stack.ready_workers()[0]["worker_id"]
    assert [m.request_id for m in messages[1:]] == [""] * (len(messages) - 1)
    assert "Paris" in "".join(m.text for m in messages)
    assert messages[-1].HasField("usage")
    usage, token_ids = messages[-1].usage, [token for m in messages for token in m.token_ids]
    assert usage.completion_tokens >= len(token_ids) > 0
    assert usage.prompt_tokens > 10
    reasons = [m.finish_reason for m in messages if m.finish_reason]
    assert reasons in ([pb.FINISH_REASON_STOP], [pb.FINISH_REASON_LENGTH])


def test_the_same_prompt_again_is_read_from_the_cache(stack: ServeProcess) -> None:
    prompt = list(range(1000, 1064))
    first = generate(stack, token_ids=prompt, max_tokens=4, ignore_eos=True)
    second = generate(stack, token_ids=prompt, max_tokens=4, ignore_eos=True)
    assert second[-1].usage.cached_tokens >= 32 > first[-1].usage.cached_tokens
    assert [i for m in first for i in m.token_ids] == [i for m in second for i in m.token_ids]


def test_reflection_lists_the_services(stack: ServeProcess) -> None:
    with grpc.insecure_channel(stack.grpc) as channel:
        services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {"polyfleet.v1.Inference", "grpc.health.v1.Health"} <= services


@pytest.mark.parametrize("service", ["", "polyfleet.v1.Inference"])
def test_health_is_serving(stack: ServeProcess, service: str) -> None:
    with grpc.insecure_channel(stack.grpc) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_an_unknown_model_is_not_found_with_the_list(stack: ServeProcess) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        generate(stack, model="absent", text="a")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert MODEL_NAME in (caught.value.details() or "")
