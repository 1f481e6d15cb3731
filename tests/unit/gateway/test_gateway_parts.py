"""Small parts of the gateway: inbox, output, ledger, health, keys, configuration, callbacks."""

import asyncio
import hashlib
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from tests.support.fake_worker import fake_tokens
from tests.support.gateway_rig import VOCABULARY
from tests.support.text_assets import assets_document

from polyfleet.gateway.api import Call, Delta, FinishReason, Usage
from polyfleet.gateway.auth import Authenticator, KeySetupError, Role, check_listen, read_keys
from polyfleet.gateway.callbacks import Listeners
from polyfleet.gateway.config import GatewayConfig, Objectives, load_config
from polyfleet.gateway.errors import (
    DataLoss,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    Unavailable,
    error_of,
)
from polyfleet.gateway.health import Health
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.accounts import Accounts
from polyfleet.gateway.request.inbox import Inbox, Parcel
from polyfleet.gateway.request.ledger import Ledger, LedgerError, Outcome
from polyfleet.gateway.request.output import ChoiceOutput, RequestOutput
from polyfleet.gateway.request.token_times import TokenTimes
from polyfleet.text.model_text import ModelText
from polyfleet.text.stop import StopStrings
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.config import ConfigError

TEXT = ModelText(assets_document())
IDS = fake_tokens([1], 40, 0, VOCABULARY)


async def test_news_of_a_choice_are_merged_until_taken() -> None:
    inbox = Inbox()
    for choice, token in ((1, 10), (0, 20), (1, 11)):
        inbox.parcel(choice).token_ids.append(token)
    inbox.num_tokens = 3
    assert [(parcel.choice, parcel.token_ids) for parcel in await inbox.take()] == [(1, [10, 11]), (0, [20])]
    assert inbox.num_tokens == 0
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(inbox.take(), 0.01)


async def test_an_error_comes_behind_the_news_and_the_first_one_counts() -> None:
    inbox = Inbox()
    inbox.parcel(0).token_ids.append(1)
    inbox.fail(DataLoss("first"))
    inbox.fail(Unavailable("second"))
    assert len(await inbox.take()) == 1
    for _ in range(2):
        with pytest.raises(DataLoss, match="first"):
            await inbox.take()


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize(
    ("stop", "shown", "num_ids"),
    [
        ("<|im_end|>", "the fox", 3),
        ("<|im_end|>\n", "the fox", 4),
        ("fox<|im_end|>", "the ", 3),
        ("nd|>\n<|im_start|>t", "the fox", 6),
        ("<|im_start|>", "the fox\n", 5),
        ("<|im_end|>x", "the fox\nthe", 6),
        ("fox\n", "the fox\nthe", 6),
    ],
)
def test_stop_strings_of_special_tokens(stop: str, shown: str, num_ids: int, size: int) -> None:
    start, end = 1, 2
    ids = [*TEXT.encode("the"), *TEXT.encode(" fox"), end, *TEXT.encode("\n"), start, *TEXT.encode("the")]
    output, deltas = ChoiceOutput(0, TEXT, StopStrings([stop])), list[Delta]()
    for at in range(0, len(ids), size):
        last = pb.FINISH_REASON_LENGTH if at + size >= len(ids) else pb.FINISH_REASON_UNSPECIFIED
        deltas.append(output.take(Parcel(0, token_ids=ids[at : at + size], finish_reason=last)))
        if deltas[-1].finish_reason:
            break
    reason = FinishReason.STOP if stop in "the fox<|im_end|>\n<|im_start|>the" else FinishReason.LENGTH
    assert "".join(delta.text for delta in deltas) == shown
    assert [i for delta in deltas for i in delta.token_ids] == ids[:num_ids]
    assert deltas[-1].finish_reason is reason


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_output_does_not_depend_on_how_tokens_are_parcelled(size: int) -> None:
    whole = TEXT.decode(IDS)
    stop = whole[15:18]
    output = ChoiceOutput(0, TEXT, StopStrings([stop]))
    deltas: list[Delta] = []
    for start in range(0, len(IDS), size):
        deltas.append(output.take(Parcel(0, token_ids=IDS[start : start + size])))
        if deltas[-1].finish_reason:
            break
    ids = [i for delta in deltas for i in delta.token_ids]
    assert "".join(delta.text for delta in deltas) == whole[: whole.index(stop)]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert ids == IDS[: len(ids)]
    assert stop in TEXT.decode(ids)
    assert stop not in TEXT.decode(ids[:-1])


def test_what_was_held_back_comes_with_the_end() -> None:
    whole = TEXT.decode(IDS)
    output = ChoiceOutput(0, TEXT, StopStrings([whole[-3:] + "never"]))
    first = output.take(Parcel(0, token_ids=list(IDS)))
    last = output.take(Parcel(0, finish_reason=pb.FINISH_REASON_LENGTH))
    assert (first.text, last.text) == (whole[:-3], whole[-3:])
    assert last.finish_reason is FinishReason.LENGTH


def test_the_first_delta_names_the_request_and_the_last_has_usage() -> None:
    with Accounts(Ledger(), Metrics(), 10).open("req-1", Call("Generate")) as record:
        output = RequestOutput([ChoiceOutput(i, TEXT, None) for i in range(2)], 5, record)
        deltas = [
            output.take(Parcel(0, "w-1", [1], cached_tokens=4)),
            output.take(Parcel(1, "w-2", [2, 3], finish_reason=pb.FINISH_REASON_LENGTH)),
            output.take(Parcel(1, "w-2", [9])),
            output.take(Parcel(0, token_ids=[4], finish_reason=pb.FINISH_REASON_STOP)),
        ]
    assert [delta.request_id if delta else None for delta in deltas] == ["req-1", "", None, ""]
    assert [delta.worker_id if delta else None for delta in deltas] == ["w-1", "w-2", None, ""]
    assert [delta.usage if delta else None for delta in deltas] == [None, None, None, Usage(5, 4, 4)]
    assert output.finished
    assert record.worker_id == "w-1"


def test_a_record_writes_down_every_way_out() -> None:
    ledger, metrics = Ledger(), Metrics()
    accounts = Accounts(ledger, metrics, 10)
    for error in (None, Unavailable("x"), GeneratorExit(), asyncio.CancelledError(), InvalidArgument("x")):
        with nullcontext() if error is None else pytest.raises(type(error)), accounts.open("r", Call("Generate")):
            if error is not None:
                raise error
    with pytest.raises(Internal, match="its log says why under r-2"), accounts.open("r-2", Call("Generate")):
        raise KeyError("a fault")
    ledger.check()
    assert (ledger.admitted, ledger.finished, ledger.failed, ledger.cancelled) == (6, 1, 3, 2)
    for code, count in {"OK": 1, "UNAVAILABLE": 1, "CANCELLED": 2, "INVALID_ARGUMENT": 1, "INTERNAL": 1}.items():
        labels = {"model": "", "method": "Generate", "code": code}
        assert metrics.registry.get_sample_value("polyfleet_requests_total", labels) == count


def test_requests_are_judged_by_the_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    metrics = Metrics()
    objectives = Objectives(time_to_first_token=2, time_per_output_token=0.5)
    accounts = Accounts(Ledger(), metrics, 10, objectives)

    def fail(error: BaseException) -> None:
        with accounts.open("r", Call("Generate", "team-b")) as record:
            record.name_model("m")
            raise error

    def answer(first: float, per_token: float) -> None:
        with accounts.open("r", Call("Generate", "team-a")) as record:
            record.name_model("m")
            record.placed("w-1", 0.0)
            record.prompt(5, 0)
            now[0] += first
            for choice in range(2):
                record.times(choice).arrived(1)
            record.generated(2)
            now[0] += per_token
            record.times(0).arrived(1)
            record.generated(1)
            now[0] += 100  # in which a client reads

    for first, per_token in ((2, 0.5), (0, 0), (2.5, 0), (0, 0.75)):
        answer(first, per_token)
    with accounts.open("r", Call("Tokenize")) as record:
        record.name_model("m")  # no worker took part
    faults, callers_own = (Unavailable("x"), FailedPrecondition("x")), (InvalidArgument("x"), NotFound("x"))
    for error in (*faults, *callers_own, asyncio.CancelledError()):
        with pytest.raises(type(error)):
            fail(error)
    value = metrics.registry.get_sample_value
    for result, count in {"good": 2, "slow": 2, "failed": 2}.items():
        assert value("polyfleet_slo_requests_total", {"model": "m", "result": result}) == count
    assert value("polyfleet_slo_objective_seconds", {"objective": "time_to_first_token"}) == 2
    assert value("polyfleet_slo_objective_seconds", {"objective": "time_per_output_token"}) == 0.5
    assert value("polyfleet_key_requests_total", {"key_id": "team-a", "code": "OK"}) == 4
    assert value("polyfleet_key_requests_total", {"key_id": "team-b", "code": "CANCELLED"}) == 1
    assert value("polyfleet_key_prompt_tokens_total", {"key_id": "team-a"}) == 20
    assert value("polyfleet_key_generation_tokens_total", {"key_id": "team-a"}) == 12


def test_times_are_those_of_each_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two choices side by side are not one that is twice as fast, and the first token of either is the first."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    metrics = Metrics()
    with Accounts(Ledger(), metrics, 1000).open("r", Call("Generate")) as record:
        record.name_model("m")
        now[0] += 1
        for arrivals in ((0,), (1,), (0, 1), (0, 1), (0,)):
            for choice in arrivals:
                record.times(choice).arrived(1)
            now[0] += 2
        record.times(2)  # never began
        record.generated(7)
        now[0] += 500
    value = metrics.registry.get_sample_value
    assert value("polyfleet_time_to_first_token_seconds_sum", {"model": "m"}) == 1
    assert value("polyfleet_time_per_output_token_seconds_count", {"model": "m"}) == 2
    assert value("polyfleet_time_per_output_token_seconds_sum", {"model": "m"}) == pytest.approx(8 / 3 + 2)


def test_a_pause_of_the_client_is_no_time_between_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    times = TokenTimes()
    times.arrived(0)
    before = (times.first, times.per_token)
    assert before == (None, None)
    times.arrived(3)  # of which two came with the first one
    now[0] += 3
    times.arrived(1)
    assert times.first == 100
    assert times.per_token == 1.0
    times.paused()
    now[0] += 1000
    times.arrived(1)
    now[0] += 3
    times.arrived(3)
    assert times.first == 100
    assert times.per_token == 1.0


def test_leaving_at_the_deadline_is_the_deadline() -> None:
    ledger = Ledger()
    with pytest.raises(asyncio.CancelledError), Accounts(ledger, Metrics(), 10).open("r", Call("Generate", timeout=0)):
        raise asyncio.CancelledError
    assert (ledger.failed, ledger.cancelled) == (1, 0)


def test_a_ledger_that_does_not_balance_says_so() -> None:
    ledger = Ledger()
    ledger.admit()
    ledger.end(Outcome.FINISHED)
    ledger.check()
    ledger.end(Outcome.FAILED)
    with pytest.raises(LedgerError, match="does not balance"):
        ledger.check()


def test_health_says_why_not() -> None:
    ready = 0
    health = Health(lambda: ready)
    assert (health.serving, health.reason) == (False, "No worker is ready.")
    ready = 1
    assert (health.serving, health.reason) == (True, "")
    health.draining = True
    assert (health.serving, health.reason) == (False, "The gateway is shutting down.")


def test_workers_errors_keep_their_code() -> None:
    assert isinstance(error_of(14, "x"), Unavailable)
    assert isinstance(error_of(3, "x"), InvalidArgument)
    assert isinstance(error_of(12, "x"), Internal)
    assert isinstance(error_of(99, "x"), Internal)


async def test_listeners_call_and_wake() -> None:
    listeners, calls = Listeners(), list[int]()
    listeners.add(lambda: calls.append(1))
    waiting = asyncio.create_task(listeners.wait())
    cancelled = asyncio.create_task(listeners.wait())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    listeners.call()
    await waiting
    listeners.call()
    assert calls == [1, 1]


def write(path: Path, keys: object) -> Path:
    path.write_text(yaml.safe_dump(keys))
    return path


def test_keys_have_roles(tmp_path: Path) -> None:
    entry = {"id": "ops", "hash": hashlib.sha256(b"s3cret").hexdigest(), "role": "operator"}
    keys = Authenticator(write(tmp_path / "keys.yaml", {"keys": [entry]}))
    assert keys.required
    principal = keys.check("Bearer s3cret")
    assert (principal.key_id, principal.role) == ("ops", Role.OPERATOR)
    for header in (None, "", "Bearer", "Bearer  ", "Basic s3cret", "Bearer s3cret2", b"Bearer \xff", "Bearer \ud800"):
        with pytest.raises(Unauthenticated):
            keys.check(header)
    assert not Authenticator(None).required
    assert Authenticator(None).check(None).key_id == ""


@pytest.mark.parametrize(
    "content",
    [
        {"keys": [{"id": "a", "hash": "short"}]},
        {"keys": [{"id": "a", "hash": "G" * 64}]},
        {"keys": [{"id": "a", "hash": "a" * 64, "role": "king"}]},
        {"keys": [{"id": "a", "hash": "a" * 64, "extra": 1}]},
        {"key": []},
        [],
    ],
)
def test_a_malformed_keys_file_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(KeySetupError, match=r"keys\.yaml is not valid"):
        read_keys(write(tmp_path / "keys.yaml", content))


def test_beyond_loopback_keys_are_needed() -> None:
    check_listen("127.0.0.1:1", None, insecure=False)
    check_listen("0.0.0.0:1", Path("keys"), insecure=False)
    check_listen("0.0.0.0:1", None, insecure=True)
    with pytest.raises(KeySetupError, match="--insecure-no-keys"):
        check_listen("0.0.0.0:1", None, insecure=False)


def test_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("gateway: {fleet: 'x:1', limits: {max_queued: 0, queue_timeout: 2}}\nworker: {anything: 1}\n")
    config = load_config(path, {"fleet": None, "http_listen": "127.0.0.1:9"})
    assert (config.fleet, config.http_listen, config.limits.max_queued) == ("x:1", "127.0.0.1:9", 0)
    path.write_text("# nothing\n")
    assert load_config(path) == load_config(None) == GatewayConfig()
    for wrong in (
        "gateway: {limits: {max_concurrent: 0}}",
        "gateway: {listen: x}",
        "gateway: [",
        "gateway: {fleet: 3}",
    ):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=r"c\.yaml is not valid"):
            load_config(path)


@pytest.mark.parametrize("origin", ["*", "https://app.example", "http://127.0.0.1:3000", "http://[::1]:80", "app://x"])
def test_origins_are_taken_as_browsers_send_them(origin: str) -> None:
    assert load_config(None, {"cors_origins": (origin,)}).cors_origins == (origin,)


@pytest.mark.parametrize(
    "origin", ["", "app.example", "https://app.example/", "https://App.example", "https://*", "null"]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        load_config(None, {"cors_origins": (origin,)})
