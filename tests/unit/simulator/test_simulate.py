"""The simulator: exact where it can be, the same for the same seed, and failures lose nothing."""

import json
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from polyfleet.cli.errors import ExitCode
from polyfleet.cli.main import cli
from polyfleet.placement.policy import Policy
from polyfleet.process.config import ConfigError
from polyfleet.simulator.engine import Job, SimulatedEngine
from polyfleet.simulator.figures import capacity, figures, first_seconds, is_good
from polyfleet.simulator.fleet_file import UNLIKE, Failure, FleetFile, Group, Speed, read_fleet, speeds
from polyfleet.simulator.simulate import Options, Outcome, Simulation
from polyfleet.simulator.trace import Arrival, Trace, draw_trace

PLAIN = Speed(prefill_tokens_per_second=1000.0, step_seconds=0.01, sequence_seconds=0.001)


def fleet(*groups: Group) -> FleetFile:
    return FleetFile(groups=groups)


def one(**options: object) -> FleetFile:
    return fleet(Group(accelerator="cpu", steps=PLAIN, jitter=0.0, **options))  # type: ignore[arg-type]


def run(wanted: FleetFile, arrivals: list[Arrival], policy: Policy | None = None, **options: float) -> Outcome:
    return Simulation(wanted, Trace(arrivals), policy or Policy(), Options(**options)).run()  # type: ignore[arg-type]


def test_one_request_takes_its_prompt_and_its_steps() -> None:
    (job,) = run(one(), [Arrival(1.0, 500, 11)]).jobs
    assert first_seconds(job) == pytest.approx(0.51)  # an empty step's share, and the prompt's
    assert job.end - job.first == pytest.approx(10 * 0.011)


def test_sequences_that_run_together_slow_each_other_and_prompts_wait_for_their_turn() -> None:
    jobs = run(one(), [Arrival(0.0, 500, 11), Arrival(0.0, 500, 11)]).jobs
    first, second = sorted(jobs, key=lambda job: job.first)
    assert first_seconds(second) > first_seconds(first) + 0.4
    assert second.end - second.first == pytest.approx(10 * 0.011, rel=0.1)  # the first one's end lies within


@pytest.mark.parametrize(("most", "longest"), [(0.0, 0.411), (0.05, 0.05), (0.001, 0.027)])
def test_steps_with_prompts_stay_under_a_time_where_there_is_one(most: float, longest: float) -> None:
    engine = SimulatedEngine("w", one(most_step_seconds=most).groups[0])
    for number, prompt in enumerate((16, 400)):
        engine.add(Job(Arrival(0.0, prompt, 60), number))
        if not number:
            engine.begin_step()
            engine.end_step(0.0)  # it decodes; 16 prompt tokens at least go with it
    taken = list[float]()
    while len(list(engine.decoding)) < 2:
        taken.append(engine.begin_step())
        engine.end_step(0.0)
    assert max(taken) == pytest.approx(longest)
    assert sum(taken) == pytest.approx(0.4 + 0.011 * len(taken))


def test_a_prompt_that_is_cached_is_not_computed_again() -> None:
    grains = tuple(range(8))
    jobs = run(one(), [Arrival(0.0, 512, 2, grains), Arrival(5.0, 512, 2, grains), Arrival(10.0, 640, 2, grains)]).jobs
    assert [job.cached_tokens for job in jobs] == [0, 511, 512]
    assert first_seconds(jobs[1]) == pytest.approx(0.011)
    assert first_seconds(jobs[2]) == pytest.approx(0.01 + 0.128)


def test_slots_and_memory_bound_what_runs() -> None:
    arrivals = [Arrival(0.0, 100, 50) for _ in range(3)]
    together = max(job.end for job in run(one(), arrivals).jobs)
    assert max(job.end for job in run(one(max_sequences=1), arrivals).jobs) > 2 * together
    assert max(job.end for job in run(one(kv_tokens=200), arrivals).jobs) > 2 * together


def test_a_failure_moves_what_ran_and_loses_nothing() -> None:
    pair = fleet(Group(accelerator="cpu", steps=PLAIN, workers=2, failures=(Failure(at=1.0, seconds=5.0, worker=0),)))
    outcome = run(pair, [Arrival(n / 10, 100, 60) for n in range(40)])
    assert sorted(job.number for job in outcome.jobs) == list(range(40))
    assert not outcome.failed
    moved = [job for job in outcome.jobs if job.moves]
    assert moved
    assert all(job.worker == "cpu-1" for job in moved if job.end < 6.0)


def test_failures_that_overlap_are_one_and_long_pauses_cost_nothing() -> None:
    failures = (Failure(at=1.0, seconds=5.0), Failure(at=2.0, seconds=1.0))
    (job,) = run(one(failures=failures), [Arrival(4.0, 100, 5)]).jobs
    assert job.first > 6.0
    jobs = run(fleet(*one().groups * 20), [Arrival(0.0, 100, 5), Arrival(1e9, 100, 5)]).jobs
    assert jobs[1].end - 1e9 == pytest.approx(jobs[0].end, abs=0.1)


def test_who_can_not_have_a_first_token_in_time_leaves_the_others_theirs() -> None:
    arrivals = [Arrival(0.3 * number, 1000, 2) for number in range(40)]  # a second of work each
    without, outcome = (run(one(), arrivals, deadline=seconds) for seconds in (inf, 2.0))
    assert not without.shed
    assert len(outcome.jobs) + len(outcome.shed) == outcome.ended == len(arrivals)
    late, timely = (sum(first_seconds(job) <= 2.0 for job in each.jobs) for each in (without, outcome))
    assert timely > 2 * late


def test_who_finds_no_worker_in_time_has_failed() -> None:
    gone = one(failures=(Failure(at=0.0, seconds=1000.0),))
    outcome = run(gone, [Arrival(1.0, 10, 2)])
    assert (len(outcome.jobs), len(outcome.failed)) == (0, 1)
    assert run(one(context_length=100), [Arrival(1.0, 99, 2)]).failed


@pytest.mark.parametrize("shared", [False, True])
def test_the_same_seed_gives_the_same_outcome_with_any_number_of_gateways(shared: bool) -> None:
    trace = draw_trace(40, 3, shared=shared, output_tokens=40).at_rate(40.0)
    for gateways in (1, 3):
        runs = [Simulation(read_fleet(UNLIKE), trace, Policy(), Options(gateways)).run() for _ in range(2)]
        ends = [[(job.number, job.worker, job.end) for job in each.jobs] for each in runs]
        assert ends[0] == ends[1]
        assert len(ends[0]) == 40


def test_gateways_that_are_told_of_each_others_prompts_send_them_where_their_beginning_is() -> None:
    arrivals = [Arrival(float(n), 600, 2, tuple(range(9))) for n in range(24)]
    equal = fleet(Group(accelerator="cpu", steps=PLAIN, workers=8))

    def missed(shared: bool) -> int:
        jobs = Simulation(equal, Trace(arrivals), Policy(), Options(gateways=8, shared=shared)).run().jobs
        return sum(not job.cached_tokens for job in jobs)

    assert missed(shared=True) <= 2 < missed(shared=False)


def test_unlike_workers_get_what_they_can_finish() -> None:
    wanted = fleet(*(Group(accelerator="cpu", speed=speed, workers=2, max_sequences=8) for speed in (8.0, 1.0)))
    trace = draw_trace(120, 1, shared=False, output_tokens=20)
    trace = trace.at_rate(0.5 * capacity(wanted, trace))
    good = {
        name: figures(Simulation(wanted, trace, Policy(policy=name), Options()).run(), trace)["good_ratio"]
        for name in ("completion", "round-robin")
    }
    assert good["completion"] > 1.2 * good["round-robin"]


BARE = "no JSON object, nor a row below a line with names"


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *arguments])


def test_the_command_reads_files_and_says_what_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("groups: [{accelerator: cpu, workers: 2, speed: 4}]\n")
    lines = [json.dumps({"timestamp": 500 * n, "input_length": 700, "output_length": 5}) for n in range(4)]
    (tmp_path / "trace.jsonl").write_text("\n".join((*lines, "{broken", "[1]", '{"timestamp": 1}')))
    (tmp_path / "policy.yaml").write_text("late_weight: 1\n")
    fleet_and_trace = ("--fleet", str(tmp_path / "fleet.yaml"), "--trace", str(tmp_path / "trace.jsonl"))
    named = ("--policy", "round-robin", "--policy", "oracle", "--policy", str(tmp_path / "policy.yaml"))
    result = simulate(*fleet_and_trace, *named, "--json", "--plot", str(tmp_path / "plot.svg"))
    assert result.exit_code == ExitCode.OK, result.output
    found = json.loads(result.stdout)
    assert found["skipped_lines"] == {"no JSON object": 1, BARE: 1, "no input_length": 1}
    assert [each["requests"] for each in found["policies"].values()] == [4, 4, 4]
    assert sum(found["policies"]["round-robin"]["workers"].values()) == 4
    assert f"1 line left out: {BARE}." in result.stderr
    tree = ElementTree.parse(tmp_path / "plot.svg")
    assert len([each for each in tree.iter() if each.tag.endswith("polyline")]) == 6


@pytest.mark.parametrize(
    ("fleet_text", "problem"),
    [
        ("groups: []", "groups"),
        ("groups: [{accelerator: abacus}]", "'abacus' is none of"),
        ("groups: [{accelerator: cpu, colour: red}]", "colour"),
        ("groups: [{accelerator: cpu, speed: .nan}]", "speed"),
        ("groups: [{accelerator: cpu, speed: 0}]", "speed"),
        ("groups: [{accelerator: cpu, name: 'a b'}]", "name"),
        ("groups: [{accelerator: cpu, kv_tokens: 8}]", "8 are less than a block of 16"),
        ("groups: [{accelerator: cpu, speed: 1, speed: 2}]", "`speed` is given twice"),
        ("groups: [{accelerator: cpu, failures: [{at: 1, seconds: 1, worker: 1}]}]", "there is no worker 1"),
    ],
)
def test_a_fleet_that_is_none_is_refused(tmp_path: Path, fleet_text: str, problem: str) -> None:
    (tmp_path / "fleet.yaml").write_text(fleet_text)
    with pytest.raises(ConfigError, match=problem):
        read_fleet(tmp_path / "fleet.yaml")
    result = simulate("--fleet", str(tmp_path / "fleet.yaml"))
    assert (result.exit_code, problem in result.output) == (ExitCode.BAD_INPUT, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--policy", "best"),
        ("--policy", "{folder}"),
        ("--policy", "{folder}/policy.yaml"),
        ("--fleet", "{folder}/slow.yaml"),
        ("--fleet", "{folder}/slow.yaml", "--load", "1"),
        ("--load", "nan"),
        ("--load", "0.5", "--rate", "3"),
        ("--trace", "{folder}/none.jsonl"),
        ("--trace", "{folder}/empty.jsonl"),
        ("--plot", "{folder}/picture.png", "--requests", "1"),
        ("--plot", "{folder}/no/such/folder.svg", "--requests", "1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "policy.yaml").write_text("late_weight: 1\nlate_weight: 2\n")
    steps = "{prefill_tokens_per_second: 1, step_seconds: 5, sequence_seconds: 0}"
    (tmp_path / "slow.yaml").write_text(f"groups: [{{accelerator: cpu, max_sequences: 1000000000, steps: {steps}}}]")
    result = simulate(*(each.format(folder=tmp_path) for each in arguments))
    assert (result.exit_code, "Traceback" in result.output) == (ExitCode.BAD_INPUT, False)
    assert result.output


def test_every_accelerator_has_a_speed_and_goodness_has_two_sides() -> None:
    from polyfleet.backends import BackendType

    assert {each.value for each in BackendType} - {"sample"} <= speeds().keys()
    (good,), (late,) = (run(one(), [Arrival(0.0, n, 5)]).jobs for n in (100, 3000))
    assert (is_good(good), is_good(late)) == (True, False)


def apart(role_of_one: str, role_of_other: str, **options: object) -> FleetFile:
    roles = {"one": role_of_one, "other": role_of_other}
    return fleet(
        *(
            Group(accelerator="cpu", name=name, role=role, steps=PLAIN, jitter=0.0, **options)  # type: ignore[arg-type]
            for name, role in roles.items()
        )
    )


def test_a_prompt_computed_apart_takes_that_its_way_and_the_last_token() -> None:
    busy = [Arrival(0.0, 64, 1000) for _ in range(20)]  # they decode when the long one comes
    parted = apart("prefill", "decode", fetch_tokens_per_second=1024.0)
    outcome = run(parted, [*busy, Arrival(2.0, 1024, 5)])
    long = next(job for job in outcome.jobs if job.arrival.prompt_tokens == 1024)
    assert (long.prefiller, long.worker) == ("one-0", "other-0")
    # two steps of 512 rows, on the way at the same time but for the last 512 tokens, and the last token's own step
    assert first_seconds(long) == pytest.approx(2 * 0.522 + 0.5, abs=0.06)
    together = run(one(), [*busy, Arrival(2.0, 1024, 5)])
    beside = sum(job.worker == "one-0" for job in outcome.jobs)  # of those that decode where the prompt is computed
    assert 0 < beside < 20
    # who is beside the prompt waits for both of its steps
    assert waits(together) - waits(run(one(), busy)) == 2 * 20
    assert waits(outcome) - waits(run(parted, busy)) == 2 * beside
    assert outcome.gaps.total() == together.gaps.total() == 20 * 999 + 4


def waits(outcome: Outcome) -> int:
    """How many tokens came more than half a second behind the one before."""
    return sum(count for gap, count in outcome.gaps.items() if gap > 5000)  # tenths of a millisecond


@pytest.mark.parametrize("dies", ["one", "other"])
def test_the_death_of_either_loses_no_request(dies: str) -> None:
    groups = {
        name: Group(
            accelerator="cpu",
            name=name,
            role=role,  # type: ignore[arg-type]
            steps=PLAIN,
            failures=(Failure(at=3.0, seconds=1.0),) if name == dies else (),
        )
        for name, role in (("one", "prefill"), ("other", "decode"))
    }
    arrivals = [Arrival(number / 4, 512, 40) for number in range(20)]
    outcome = run(fleet(*groups.values()), arrivals)
    assert len(outcome.jobs) == 20
    assert any(job.prefiller for job in outcome.jobs)
