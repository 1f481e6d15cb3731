"""The soak: its cases, how answers are judged, what counts as lost, its helpers, its command line."""

import asyncio

import pytest
from bench.soak import parse, probe_rows, stream_rows
from bench.soaking.cases import LENGTHS, Answer, Case, first_difference, make_cases
from bench.soaking.stack import Helper
from bench.soaking.streams import Caller, Soak, StreamError, Tally
from tests.support.gateway_rig import GatewayRig, text_worker

from polyfleet.v1 import inference_pb2 as pb

CASES = [Case("greedy", "the quick fox", 40, None), Case("drawn", "lazy dogs", 30, 7)]


def test_cases_repeat_by_seed_cross_1024_and_share_prefixes() -> None:
    cases = make_cases(24, 96, seed=3)
    assert cases == make_cases(24, 96, seed=3)
    assert cases != make_cases(24, 96, seed=4)
    lengths = [len(case.prompt.split()) for case in cases]
    assert lengths == [*LENGTHS, *LENGTHS]
    assert len({case.prompt for case in cases}) == 24
    long = [case.prompt.split()[:880] for case in cases if len(case.prompt.split()) > 880]
    assert len(long) == 12
    assert all(each == long[0] for each in long)
    assert any(length < 1024 < length + case.max_tokens for length, case in zip(lengths, cases, strict=True))
    assert [case.seed is None for case in cases[:4]] == [True, False, True, False]


def test_answers_are_compared_token_by_token() -> None:
    right = (1, 2, 3)
    assert first_difference((1, 2, 3), right, whole=True) is None
    assert first_difference((1, 2), right, whole=False) is None
    assert first_difference((), right, whole=False) is None
    assert first_difference((1, 2), right, whole=True) == 2
    assert first_difference((1, 9, 3), right, whole=False) == 1
    assert first_difference((1, 2, 3, 4), right, whole=False) == 3
    assert first_difference("abx", "abc", whole=False) == 2


@pytest.mark.parametrize(
    ("status", "begun", "lost"),
    [
        ("UNAVAILABLE", False, False),
        ("429", False, False),
        ("UNAVAILABLE", True, True),
        ("INTERNAL", False, True),
        ("DATA_LOSS", True, True),
        ("ReadError", False, True),
    ],
)
def test_what_is_lost(status: str, begun: bool, lost: bool) -> None:
    assert StreamError(status, "why", begun=begun).lost is lost


async def test_streams_of_both_protocols_are_right_and_a_wrong_token_is_found() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        grpc = f"127.0.0.1:{rig.gateway.grpc.port}"
        async with Caller(grpc, rig.http.removeprefix("http://")) as caller:
            assert await caller.ready_workers() == 1
            right = {case: (await caller.over_grpc(case))[0] for case in CASES}
            assert [len(answer.ids) for answer in right.values()] == [40, 30]
            assert [(await caller.over_http(case)).text for case in CASES] == [each.text for each in right.values()]
            good = Soak([caller], right, cancel_share=0.4, seed=1)
            await good.run(clients=4, seconds=0.5)
            assert (good.tally.wrong, good.tally.lost, good.tally.statuses) == ([], [], {})
            assert set(good.tally.finished) == {"grpc", "http"}
            assert good.tally.cancelled
            wrong = {case: Answer((*each.ids[:-1], 0), each.text[:-1] + "\0") for case, each in right.items()}
            bad = Soak([caller], wrong, cancel_share=0, seed=1)
            await bad.run(clients=2, seconds=0.3)
            assert len(bad.tally.wrong) == bad.tally.finished.total() > 0


async def test_a_stream_that_breaks_is_lost_and_a_refusal_is_not() -> None:
    async with GatewayRig(queue_timeout=0.05) as rig:
        worker = text_worker("w-1", token_seconds=0.005)
        await rig.add(worker)
        async with Caller(f"127.0.0.1:{rig.gateway.grpc.port}", rig.http.removeprefix("http://")) as caller:
            run = Soak([caller], {case: Answer((), "") for case in CASES}, cancel_share=0, seed=1)
            worker.refusal = (14, "draining")
            await run.run(clients=1, seconds=0.01)
            assert run.tally.statuses.total() == 1
            assert run.tally.lost == []


async def test_the_probe_measures_a_gateway() -> None:
    async with GatewayRig() as rig:
        async with Helper("probe.py", rig.http.removeprefix("http://")) as probe:
            await asyncio.sleep(1.5)
        assert probe.seen["failures"] == 0
        assert probe.seen["count"] > 0
        assert 0 < probe.seen["p50"] <= probe.seen["p99"] <= probe.seen["max"]
        assert {row.name for row in probe_rows(probe.seen)} >= {"soak_healthz_p99", "soak_healthz_probe_delay_p99"}


async def test_attackers_strike_until_they_are_called_off() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        http, grpc = rig.http.removeprefix("http://"), f"127.0.0.1:{rig.gateway.grpc.port}"
        async with Helper("attacks.py", http, grpc, "headers,garbage,bodies") as harm:
            await asyncio.sleep(1.5)
        assert set(harm.seen) == {"headers", "garbage", "bodies"}
        assert (await rig.stub.ListModels(pb.ListModelsRequest())).models


def test_rows_tell_statuses_by_name() -> None:
    tally = Tally()
    tally.statuses["UNAVAILABLE"] += 2
    rows = {row.name: row.value for row in stream_rows(tally)}
    assert rows["soak_status_UNAVAILABLE"] == 2
    assert rows["soak_wrong"] == rows["soak_lost"] == 0


@pytest.mark.parametrize(
    "line", ["--attack nope", "--grpc 127.0.0.1:1", "--grpc 10.0.0.1:1 --http 10.0.0.1:2", "--seconds 0", "--cases 0"]
)
def test_what_cant_be_run_is_refused(line: str) -> None:
    with pytest.raises(SystemExit):
        parse(line.split())


def test_all_attacks_have_a_name() -> None:
    assert "prompts" in parse(["--attack", "all"]).attacks
    assert parse([]).attacks == []
