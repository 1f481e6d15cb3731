"""The load generator: percentiles, prompts, loops, rounds, event reading, rows."""

import asyncio
import itertools
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.load.cpu import CpuClock
from bench.load.targets import EventReader
from bench.report import Row, compare, publish
from bench.serving import parse

from polyfleet.benchmark.figures import added_rows, load_rows
from polyfleet.benchmark.loops import Plan, Result, run_pairs, run_rounds, warm_up
from polyfleet.benchmark.work import Job, Outcome, make_jobs, percentile
from polyfleet.process.within import Within


class FakeTarget:
    """Answers after `seconds`, once `crowd` requests have run at the same time, and remembers who ran when."""

    def __init__(self, name: str, log: list[str], seconds: float = 0.0, crowd: int = 1) -> None:
        self.name, self.address = name, "127.0.0.1:1"
        self.log, self.seconds, self.crowd = log, seconds, crowd
        self.running = self.most_running = 0
        self.jobs: list[Job] = []

    async def run(self, job: Job, due: float) -> Outcome:
        self.log.append(self.name)
        self.jobs.append(job)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(self.seconds)
        while self.most_running < self.crowd:
            await asyncio.sleep(0.001)
        self.running -= 1
        now = time.monotonic()
        return Outcome(due, now, now, now, 3, job.max_tokens)

    async def __aenter__(self) -> "FakeTarget":
        return self

    async def __aexit__(self, *_: object) -> None: ...


def test_percentile() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0], 0.99) == pytest.approx(1.99)
    assert percentile([5.0], 0.99) == 5.0
    assert math.isnan(percentile([], 0.5))


def test_outcome_times() -> None:
    outcome = Outcome(due=10.0, first=10.5, last=12.5, end=12.6, tokens=5)
    assert (outcome.ttft, outcome.tpot) == (0.5, 0.5)
    assert outcome.latency == pytest.approx(2.6)
    assert Outcome(due=0, first=1, last=1, end=1, tokens=1).tpot is None


def test_jobs_repeat_by_seed_and_differ_among_themselves() -> None:
    jobs = list(itertools.islice(make_jobs("ids", 7, 3, seed=5), 4))
    assert jobs == list(itertools.islice(make_jobs("ids", 7, 3, seed=5), 4))
    assert len({job.token_ids for job in jobs}) == 4
    assert {len(job.token_ids) for job in jobs} == {7}
    text = next(make_jobs("chat", 7, 3, seed=5))
    assert (text.chat, text.max_tokens, len(text.text.split())) == (True, 3, 7)


async def test_rounds_take_turns_and_serve_every_request() -> None:
    log: list[str] = []
    targets = [FakeTarget("a", log), FakeTarget("b", log)]
    results = await run_rounds(targets, make_jobs("ids", 2, 1, 0), Plan(requests=5, seconds=60, rounds=2))
    assert "".join(log) == "aaabbbaabb"
    assert [len(result.good) for result in results] == [5, 5]
    assert len({job.token_ids for target in targets for job in target.jobs}) == 10


async def test_closed_loop_keeps_its_number_of_clients() -> None:
    target = FakeTarget("a", [], seconds=0.005)
    plan = Plan(requests=20, seconds=60, concurrency=4, rounds=1)
    (result,) = await run_rounds([target], make_jobs("ids", 2, 1, 0), plan)
    assert (target.most_running, len(result.outcomes)) == (4, 20)


async def test_loops_end_when_their_time_is_over() -> None:
    for plan in (Plan(requests=10**6, seconds=0.05, rounds=2), Plan(requests=10**6, seconds=0.05, rate=1000, rounds=2)):
        (result,) = await run_rounds([FakeTarget("a", [], 0.001)], make_jobs("ids", 2, 1, 0), plan)
        assert 0 < len(result.outcomes) < 1000


async def test_open_loop_does_not_wait_for_answers_and_counts_from_when_they_were_due() -> None:
    target = FakeTarget("a", [], crowd=20)
    plan = Plan(requests=20, seconds=60, rate=1000, rounds=1)
    with Within(60):
        (result,) = await run_rounds([target], make_jobs("ids", 2, 1, 0), plan)
    assert target.most_running == len(result.outcomes) == 20
    dues = sorted(outcome.due for outcome in result.outcomes)
    assert len({later - earlier for earlier, later in itertools.pairwise(dues)}) == 19  # no clock, a Poisson process
    assert all(outcome.due <= outcome.first for outcome in result.outcomes)


async def test_pairs_alternate_who_comes_first() -> None:
    log: list[str] = []
    targets = [FakeTarget("a", log), FakeTarget("b", log)]
    jobs = [Job(text="x"), Job(token_ids=(1,))]
    results = await run_pairs(targets, jobs, Plan(requests=4, seconds=60))
    assert "".join(log) == "baabbaab"
    assert [len(result.outcomes) for result in results] == [4, 4]
    assert [set(target.jobs) for target in targets] == [{jobs[0]}, {jobs[1]}]


async def test_warm_up_is_not_measured_but_done() -> None:
    target = FakeTarget("a", [])
    await warm_up(target, make_jobs("ids", 2, 1, 0), Plan(requests=1, seconds=60, warmup=3))
    assert len(target.jobs) == 3


def read(*lines: str) -> Outcome:
    reader = EventReader(due=time.monotonic())
    for line in lines:
        reader.read(line)
    return reader.outcome()


def test_events_of_both_endpoints() -> None:
    outcome = read(
        'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
        "",
        'data: {"choices": [{"delta": {"content": "a"}}]}',
        'data: {"choices": [{"text": "b"}]}',
        'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}}',
        "data: [DONE]",
    )
    assert (outcome.prompt_tokens, outcome.tokens, outcome.error) == (9, 7, "")
    assert outcome.due <= outcome.first <= outcome.last <= outcome.end


def test_role_ahead_of_the_first_token_does_not_count() -> None:
    reader = EventReader(due=time.monotonic())
    reader.read('data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}')
    between = time.monotonic()
    reader.read('data: {"choices": [{"delta": {"content": "a"}}]}')
    assert reader.outcome().first >= between


def test_role_counts_where_there_is_no_content() -> None:
    reader = EventReader(due=time.monotonic())
    reader.read('data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}')
    between = time.monotonic()
    reader.read('data: {"choices": [{"delta": {}, "finish_reason": "length"}]}')
    assert reader.outcome().first <= between


def test_first_chunk_of_a_text_completion_counts_without_text() -> None:
    reader = EventReader(due=time.monotonic())
    reader.read('data: {"choices": [{"text": ""}]}')
    between = time.monotonic()
    reader.read('data: {"choices": [{"text": "a"}]}')
    assert reader.outcome().first <= between


def test_chunks_count_where_usage_is_missing() -> None:
    assert read('data: {"choices": [{"text": "b"}], "usage": null}', "data: [DONE]").tokens == 1


def test_stream_without_done_and_error_events_are_errors() -> None:
    assert read('data: {"choices": [{"text": "b"}]}').error == "the stream ended without [DONE]"
    assert read('data: {"error": {"message": "broken", "code": "data_loss"}}').error == "broken"


def result_of(*outcomes: Outcome, seconds: float) -> Result:
    return Result(FakeTarget("peer", []), list(outcomes), seconds)


def test_rows_set_a_peer_beside_us() -> None:
    ours = result_of(Outcome(0, 0.1, 0.3, 0.3, 5, 3), Outcome(0, error="x"), seconds=1.0)
    theirs = result_of(Outcome(0, 0.2, 0.8, 0.8, 5, 3), seconds=1.5)
    rows = {row.name: row for row in load_rows(ours, theirs)}
    ttft = rows["serving_ttft_p50"]
    assert (ttft.value, ttft.unit, ttft.peer, ttft.peer_value) == (100, "ms", "peer 127.0.0.1:1", 200)
    assert ttft.ratio == pytest.approx(2)
    assert rows["serving_tpot_p99"].ratio == pytest.approx(3)
    assert rows["serving_throughput"] == Row("serving_throughput", 3.0, "tok/s", "peer 127.0.0.1:1", 2.0, 1.5)
    assert (rows["serving_errors"].value, rows["serving_errors"].peer_value) == (1, 0)


def test_added_time_to_first_token() -> None:
    through = result_of(*(Outcome(0, first, 1, 1, 5, 3) for first in (0.011, 0.012, 0.5)), seconds=1)
    direct = result_of(*(Outcome(0, first, 1, 1, 5, 3) for first in (0.009, 0.008, 0.010)), seconds=1)
    rows = {row.name: row for row in added_rows(through, direct)}
    assert rows["serving_gateway_added_ttft_p50"].value == pytest.approx(3)
    assert rows["serving_gateway_added_ttft_paired_p50"].value == pytest.approx(4)
    assert rows["serving_ttft_through_gateway_p50"].peer_value == pytest.approx(9)


def test_cpu_clock_counts_this_process() -> None:
    clock = CpuClock({"me": os.getpid()})
    begin = time.process_time()
    while time.process_time() - begin < 0.1:
        pass
    used, per_token = clock.rows(tokens=10)
    assert (used.name, used.unit, per_token.unit) == ("serving_cpu_me", "s", "us")
    assert used.value is not None
    assert per_token.value == pytest.approx(used.value / 10 * 1e6)
    assert used.value >= 0.05


def test_ratio_over_one_is_better() -> None:
    assert compare("a", 2.0, "ms", "p", 4.0, lower_is_better=True).ratio == 2
    assert compare("a", 2.0, "tok/s", "p", 4.0).ratio == 0.5
    assert compare("a", 2.0, "ms").ratio is None
    assert compare("a", 0.0, "ms", "p", 4.0, lower_is_better=True).ratio is None


def test_publish_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = publish([compare("a_long_name_of_a_row", 1234.5, "tok/s", "peer", 2.0)], tmp_path / "rows.json")
    assert row.command
    table = capsys.readouterr().out
    assert "a_long_name_of_a_row" in table
    assert "1,234" in table
    assert '"peer_value": 2.0' in (tmp_path / "rows.json").read_text()


def test_rows_before_a_run_breaks_off_are_written(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield compare("first", 1.0, "ms")
        raise RuntimeError("out of time")

    with pytest.raises(RuntimeError, match="out of time"):
        publish(rows(), tmp_path / "rows.json")
    assert [each["name"] for each in json.loads((tmp_path / "rows.json").read_text())] == ["first"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--url", "http://example.com/v1"], "not on this machine"),
        (["--peer", "http://10.1.2.3:8000/v1"], "not on this machine"),
        (["--grpc", "gateway:50051"], "not on this machine"),
        (["--direct-worker", "10.0.0.1:1", "--prompt", "ids"], "not on this machine"),
        (["--url", "nonsense"], "no http URL"),
        (["--url", "http://127.0.0.1/v1", "--grpc", "127.0.0.1:1"], "one of"),
        (["--direct-worker", "127.0.0.1:1"], "needs --grpc"),
        (["--direct-worker", "127.0.0.1:1", "--grpc", "127.0.0.1:2", "--rate", "3"], "one request after the other"),
        (["--requests", "0"], "must be 1 or more"),
        (["--pid", "nonsense"], "NAME=PID"),
    ],
)
def test_command_line_refuses(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert complaint in capsys.readouterr().err


def test_remote_targets_on_request() -> None:
    assert parse(["--url", "http://example.com/v1", "--allow-remote", "--pid", "gw=12"]).pids == {"gw": 12}
