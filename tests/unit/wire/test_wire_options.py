"""The declaration of the engine's options: what each takes, and what is said of all else."""

from dataclasses import fields, replace
from typing import Any

import pytest

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import MOST, OPTIONS, EngineOptions, OptionValue, checked, options_in

COUNTS = [name for name, option in OPTIONS.items() if option.kind is int]
COUNT = f"must be a whole number from 1 to {MOST}, or 0 for a good choice, not "
SECONDS = "must be a number over 0 up to 3600, or 0 for a good choice, not "


def test_every_field_but_three_is_an_operators_to_choose() -> None:
    assert {each.name for each in fields(EngineOptions)} - set(OPTIONS) == {"device", "backend", "canary"}
    for option in OPTIONS.values():
        assert option.check(option.default) == option.default == getattr(EngineOptions(), option.name)
        assert option.help.endswith(".")


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1, "-1"), (MOST + 1, str(MOST + 1)), (1.0, "1.0"), (True, "true"), (None, "null"), ("2", "'2'"), ([], "[]"),
        (10**400, "an integer of over 64 bits"),
    ],
)  # fmt: skip
def test_a_count_is_whole_and_of_31_bits(name: str, value: object, shown: str) -> None:
    with pytest.raises(FieldError) as raised:
        checked({name: value})
    assert str(raised.value) == f"{name}: must be {OPTIONS[name].limit}, not {shown}"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"step_seconds": float("nan")}, f"step_seconds: {SECONDS}nan"),
        ({"step_seconds": float("inf")}, f"step_seconds: {SECONDS}inf"),
        ({"step_seconds": -0.5}, f"step_seconds: {SECONDS}-0.5"),
        ({"step_seconds": 3600.5}, f"step_seconds: {SECONDS}3600.5"),
        ({"step_seconds": False}, f"step_seconds: {SECONDS}false"),
        ({"step_seconds": "1"}, f"step_seconds: {SECONDS}'1'"),
        ({"dtype": "int3"}, "dtype: must be auto, float32, float16 or bfloat16, not 'int3'"),
        ({"dtype": ""}, "dtype: must be auto, float32, float16 or bfloat16, not ''"),
        ({"prefix_cache": 1}, "prefix_cache: must be true or false, not 1"),
        ({"reproducible": "yes"}, "reproducible: must be true or false, not 'yes'"),
        ({"step_tokens": 1}, "step_tokens: must be over max_sequences (1), not 1"),
        ({"step_tokens": 8, "max_sequences": 9}, "step_tokens: must be over max_sequences (9), not 8"),
        (
            {"step_tokens": 36, "max_sequences": 4, "speculation": "ngram", "draft_tokens": 8},
            "step_tokens: must be over max_sequences and their drafts (36), not 36",
        ),
        ({"draft_tokens": 17}, "draft_tokens: must be a whole number from 1 to 16, or 0 for a good choice, not 17"),
        ({"speculation": "on"}, "speculation: must be off, ngram or draft, not 'on'"),
        (
            {"draft_model": "a\0b"},
            "draft_model: must be a path without control characters, not 'a\\x00b'",
        ),
        ({"ngram_min": 3, "ngram_max": 2}, "ngram_max: must be at least ngram_min (3), not 2"),
        ({"ngram_max": 1}, "ngram_max: must be at least ngram_min (2), not 1"),
        ({"thread": 1}, f"thread: is no option: choose from {', '.join(OPTIONS)}"),
        ({"device": "cpu"}, f"device: is no option: choose from {', '.join(OPTIONS)}"),
    ],
)
def test_what_is_no_value_is_refused_by_option_value_and_limit(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(FieldError) as raised:
        checked(given)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"speculation": "draft"}, "draft_model: is needed where speculation is draft"),
        ({"draft_model": "a"}, "draft_model: goes with speculation draft, not with off"),
        ({"speculation": "ngram", "draft_model": "a"}, "draft_model: goes with speculation draft, not with ngram"),
    ],
)
def test_a_model_drafts_where_one_is_named(given: dict[str, Any], problem: str) -> None:
    """Flags, files and choices may say one each, but not all of them together."""
    assert checked(given) == given
    with pytest.raises(FieldError) as raised:
        EngineOptions(**given)
    assert str(raised.value) == problem
    with pytest.raises(FieldError) as raised:
        options_in(pb.WorkerOptions(**given))
    assert str(raised.value) == problem


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\n", "x" * 65, "a=b:c", "é"])
def test_an_executors_name_is_short_and_plain(name: str) -> None:
    with pytest.raises(FieldError, match=r"^executor: must be auto or a name of up to 64 letters, digits"):
        checked({"executor": name})
    assert checked({"executor": "lab.v2_x-1"}) == {"executor": "lab.v2_x-1"}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("threads", "4", 4), ("threads", " 4 ", 4), ("step_seconds", "1", 1.0), ("step_seconds", "2e-1", 0.2),
        ("prefix_cache", "false", False), ("prefix_cache", "ON", True), ("dtype", "float16", "float16"),
        ("executor", "eager", "eager"), ("threads", str(MOST), MOST),
    ],
)  # fmt: skip
def test_a_command_lines_text_is_a_value(name: str, text: str, value: OptionValue) -> None:
    parsed = OPTIONS[name].parse(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("threads", "four", f"{COUNT}'four'"),
        ("threads", "1e3", f"{COUNT}'1e3'"),
        ("threads", "-1", f"{COUNT}-1"),
        ("threads", "", f"{COUNT}''"),
        ("step_seconds", "soon", f"{SECONDS}'soon'"),
        ("prefix_cache", "maybe", "must be true or false, not 'maybe'"),
    ],
)
def test_other_text_is_refused_as_it_was_written(name: str, text: str, sentence: str) -> None:
    with pytest.raises(FieldError) as raised:
        OPTIONS[name].parse(text)
    assert raised.value.problem == sentence


def test_an_engines_options_are_checked_whoever_makes_them() -> None:
    made: Any = {"max_sequences": -1}
    with pytest.raises(FieldError, match=r"^max_sequences: "):
        EngineOptions(**made)
    with pytest.raises(FieldError, match=r"^dtype: "):
        replace(EngineOptions(), dtype="int8")


def test_a_message_states_what_is_set_in_it() -> None:
    assert options_in(pb.WorkerOptions()) == {}
    assert options_in(pb.WorkerOptions(prefix_cache=False, threads=0)) == {"prefix_cache": False}
    stated: dict[str, Any] = {name: example(name) for name in OPTIONS}
    assert options_in(pb.WorkerOptions(**stated)) == stated
    with pytest.raises(FieldError, match=rf"^threads: {COUNT}{2**32 - 1}"):
        options_in(pb.WorkerOptions(threads=2**32 - 1))


def test_a_newer_peers_option_is_passed_over() -> None:
    later = pb.WorkerOptions.FromString(pb.WorkerOptions(threads=2).SerializeToString() + b"\xa0\x06\x01")  # field 100
    assert options_in(later) == {"threads": 2}


def example(name: str) -> OptionValue:
    """A value of the option that is not its default."""
    option = OPTIONS[name]
    if option.kind is bool:
        return not option.default
    if option.kind is str:
        return option.choices[-1] if option.choices else "eager"
    return 100 if name == "step_tokens" else option.kind(7)


def test_options_that_do_not_go_together_are_refused_as_they_are_made() -> None:
    with pytest.raises(FieldError, match=r"^step_tokens: must be over max_sequences \(8\), not 8$"):
        EngineOptions(max_sequences=8, step_tokens=8)
