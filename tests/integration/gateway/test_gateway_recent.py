"""What a gateway tells the scheduler of its requests: those that run, and each that ended once, with its moves."""

import asyncio
import json

from tests.support.gateway_rig import MODEL, GatewayRig, Stream, text_worker, until

from polyfleet.gateway.recent import REASONS_AT_ONCE, RecentRequests
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1.operations_pb2 import RequestRecord


async def test_a_request_is_told_while_it_runs_and_once_when_it_has_ended() -> None:
    async with GatewayRig() as rig:
        first, second = (text_worker(name, token_seconds=0.02) for name in ("w-1", "w-2"))
        await rig.add(first, second)
        request = pb.GenerateRequest(model=MODEL, text="hi", max_tokens=400, request_id="mine")
        call = rig.stub.Generate(request)
        reading = asyncio.create_task(Stream.read(call))
        await until(lambda: bool(first.sequences or second.sequences))
        loser, other = (first, second) if first.sequences else (second, first)
        await until(lambda: any(report.running for report in rig.fleet.reports))
        running = next(report.running[0] for report in rig.fleet.reports if report.running)
        assert (running.request_id, running.model, running.method, running.code) == ("mine", MODEL, "Generate", "")
        await rig.drop(loser)
        stream = await reading
        await until(lambda: any(report.ended for report in rig.fleet.reports))
        (ended,) = [each for report in rig.fleet.reports for each in report.ended]
        assert list(ended.worker_ids) == [loser.worker_id, other.worker_id]
        assert (ended.code, ended.completion_tokens, ended.prompt_tokens) == ("OK", 400, stream.usage.prompt_tokens)
        assert json.loads(ended.placement)["worker_id"] == other.worker_id
        assert 0 < ended.first_token_seconds <= ended.seconds
        assert not rig.fleet.reports[-1].running


async def test_a_refused_request_is_told_with_its_status() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        call = rig.stub.Generate(pb.GenerateRequest(model=MODEL, text="hi", max_tokens=2**20, request_id="bad"))
        assert await call.code()
        await until(lambda: any(report.ended for report in rig.fleet.reports))
        (ended,) = [each for report in rig.fleet.reports for each in report.ended]
        assert (ended.request_id, ended.code, list(ended.worker_ids)) == ("bad", "INVALID_ARGUMENT", [])
        assert not ended.HasField("first_token_seconds")


def test_reasons_are_kept_for_some_and_records_told_until_they_are_heard() -> None:
    now = 0.0
    recent = RecentRequests(lambda: now)
    assert sum(recent.wants_reasons() for _ in range(200)) == REASONS_AT_ONCE
    now = 1.0
    assert sum(recent.wants_reasons() for _ in range(200)) == 5
    assert recent.report() is None
    recent._ended.extend(RequestRecord(request_id=str(number)) for number in range(600))
    ended, _ = recent.report() or ([], [])
    assert [each.request_id for each in ended] == [str(number) for number in range(88, 600)]
    recent._ended.append(RequestRecord(request_id="later"))  # the oldest finds no room any more
    recent.told(ended, running=False)
    assert [each.request_id for each in (recent.report() or ([], []))[0]] == ["later"]
