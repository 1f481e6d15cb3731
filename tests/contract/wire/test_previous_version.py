"""Old beside new: gateways, workers and clients of the previous version work with those of this one."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.fake_tokens import fake_embedding, fake_tokens
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, Stream, text_worker
from tests.support.previous_protos import FILES, as_previous, previous, previous_files
from tests.support.running_worker import RunningWorker
from tests.support.text_assets import assets_document

from polyfleet.v1 import fleet_pb2, worker_pb2
from polyfleet.v1 import inference_pb2 as pb

NOW = {file.name: file for file in FILES}
PROMPT = [5, 6, 7]


class OldWorker(FakeWorker):
    """A worker of the previous version: what that does not know it neither reads nor says."""

    async def Session(
        self, requests: AsyncIterator[worker_pb2.SessionCommand], context: Any
    ) -> AsyncIterator[worker_pb2.SessionEvent]:
        """As ever, in the previous version's words."""
        known = (as_previous(command) async for command in requests)
        async for event in super().Session(known, context):
            yield as_previous(event)

    def info(self) -> fleet_pb2.WorkerInfo:
        """What it announces."""
        return as_previous(super().info())


def old_worker(worker_id: str, **options: Any) -> OldWorker:
    return OldWorker(worker_id, MODEL, assets=assets_document(), vocabulary_size=VOCABULARY, **options)


def old_session(channel: Any) -> Any:
    """A session as a gateway of the previous version holds it."""
    return channel.stream_stream(
        "/polyfleet.v1.Worker/Session",
        request_serializer=previous("SessionCommand").SerializeToString,
        response_deserializer=previous("SessionEvent").FromString,
    )()


async def run_to_end(call: Any, **start: Any) -> tuple[list[Any], Any]:
    """Start a sequence; its deltas, and the worker's last status."""
    await call.write(previous("SessionCommand")(start=previous("StartSequence")(**start)))
    deltas: list[Any] = []
    while not deltas or not (deltas[-1].finish_reason or deltas[-1].HasField("error")):
        event = await call.read()
        assert isinstance(event, previous("SessionEvent")), "the session ended"
        deltas += [each for each in event.deltas if each.sequence_id == start["sequence_id"]]
    return deltas, event.status


@pytest.mark.parametrize("name", NOW)
def test_what_was_there_is_there_under_its_number(name: str) -> None:
    (file,) = (file for file in previous_files().file if file.name == name)
    assert {each.name for each in file.message_type} <= set(NOW[name].message_types_by_name.keys())
    for message in file.message_type:
        fields = NOW[name].message_types_by_name[message.name].fields_by_name
        for before in message.field:
            field = fields[before.name]
            kind = field.message_type or field.enum_type
            same = (
                field.number,
                field.type,
                kind and f".{kind.full_name}",
                field.has_presence and not field.message_type,
            )
            wanted = (before.number, before.type, before.type_name or None, before.HasField("oneof_index"))
            assert same[:3] == wanted[:3], before.name
            assert same[3] == wanted[3] or field.message_type, before.name
    for enumeration in file.enum_type:
        values = NOW[name].enum_types_by_name[enumeration.name].values_by_name
        assert all(values[each.name].number == each.number for each in enumeration.value)
    for service in file.service:
        methods = NOW[name].services_by_name[service.name].methods_by_name
        assert {method.name for method in service.method} <= set(methods.keys())


async def test_a_gateway_beside_an_older_worker() -> None:
    """The older worker knows nothing of min_tokens and so may end too early; all else is as ever."""
    worker = old_worker("w-old")
    tokens = fake_tokens(PROMPT, 12, vocabulary_size=VOCABULARY)
    least: dict[str, Any] = {"max_tokens": 12, "min_tokens": 9, "n": 2, "logprobs": 1}
    async with GatewayRig() as rig:
        await rig.add(worker)
        whole = await Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=PROMPT, **least)))
        cut = pb.GenerateRequest(token_ids=PROMPT, stop_token_ids=[tokens[4]], **least)
        stopped = await Stream.read(rig.stub.Generate(cut))
        embedded = await rig.stub.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(token_ids=PROMPT)]))
    assert whole.ids() == tokens
    assert whole.ids(1) == fake_tokens(PROMPT, 12, choice=1, vocabulary_size=VOCABULARY)
    assert whole.reasons() == {0: pb.FINISH_REASON_LENGTH, 1: pb.FINISH_REASON_LENGTH}
    assert stopped.ids() == tokens[: tokens.index(tokens[4])]
    assert list(embedded.embeddings[0].values) == pytest.approx(fake_embedding(PROMPT, 8))
    assert worker.started
    assert not any(start.min_tokens for start in worker.started)


@pytest.mark.parametrize("old_first", [True, False])
async def test_a_sequence_moves_between_an_older_and_a_newer_worker(old_first: bool) -> None:
    first, second = (old_worker("w-1"), text_worker("w-2")) if old_first else (text_worker("w-1"), old_worker("w-2"))
    async with GatewayRig() as rig:
        await rig.add(first)
        first.drop_after(5)
        first.token_seconds = 0.01
        call = rig.stub.Generate(pb.GenerateRequest(token_ids=PROMPT, max_tokens=20, min_tokens=20))
        messages = [await call.read()]
        await rig.add(second)
        first.refusal = (grpc.StatusCode.UNAVAILABLE.value[0], "going")
        while isinstance(message := await call.read(), pb.GenerateResponse):
            messages.append(message)
    stream = Stream(messages)
    assert stream.ids() == fake_tokens(PROMPT, 20, vocabulary_size=VOCABULARY)
    assert stream.workers() == ["w-1", "w-2"]


async def test_an_older_gateway_beside_a_worker(tmp_path: Path) -> None:
    sampling = previous("SamplingParams")(temperature=0.5, top_p=0.9, seed=2**64 - 1)
    async with (
        RunningWorker(tmp_path, model="fake:step_seconds=0.001") as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        call = old_session(channel)
        await call.write(previous("SessionCommand")(hello=previous("Hello")(gateway_id="g-old")))
        plain: dict[str, Any] = {"prompt_ids": PROMPT, "sampling": sampling, "max_tokens": 10}
        tokens = fake_tokens(PROMPT, 10)
        deltas, status = await run_to_end(call, sequence_id="a", logprobs=1, priority=-3, **plain)
        assert [token for delta in deltas for token in delta.token_ids] == tokens
        assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
        assert (deltas[-1].finish_reason, deltas[0].cached_tokens) == (pb.FINISH_REASON_LENGTH, 1)
        assert status.state == fleet_pb2.WORKER_STATE_READY
        assert status.counters.finished > 0
        resumed, _ = await run_to_end(call, sequence_id="b", generated_ids=tokens[:4], **plain)
        assert [token for delta in resumed for token in delta.token_ids] == tokens[4:]
        (vector,), _ = await run_to_end(call, sequence_id="c", prompt_ids=PROMPT, pooling=pb.POOLING_LAST, max_tokens=1)
        assert list(vector.embedding) == pytest.approx(fake_embedding(PROMPT, 8))
        (refused,), _ = await run_to_end(call, sequence_id="d", prompt_ids=PROMPT, pooling=9)
        assert (refused.error.code, refused.error.message[:8]) == (3, "pooling:")


async def test_an_older_client_of_a_gateway() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        async with rig.channel() as channel:
            generate = channel.unary_stream(
                "/polyfleet.v1.Inference/Generate",
                request_serializer=previous("GenerateRequest").SerializeToString,
                response_deserializer=previous("GenerateResponse").FromString,
            )
            request = previous("GenerateRequest")(token_ids=PROMPT, max_tokens=9, logprobs=1)
            messages = [message async for message in generate(request)]
    assert [token for message in messages for token in message.token_ids] == fake_tokens(
        PROMPT, 9, vocabulary_size=VOCABULARY
    )
    assert (messages[-1].finish_reason, messages[-1].usage.completion_tokens) == (pb.FINISH_REASON_LENGTH, 9)
