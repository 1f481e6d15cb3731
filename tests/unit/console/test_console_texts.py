"""The console's two languages, and that its files keep to the policy that its answers state."""

import json
import re
from importlib import resources
from pathlib import Path

from polyfleet.console.fleet.words import GATEWAY_GONE, SCHEDULER_GONE, UNHEARD
from polyfleet.console.pages.look import THEMES, gibibytes, milliseconds, number, percent, translations
from polyfleet.gateway.auth import UNKNOWN_KEY
from polyfleet.v1 import fleet_pb2, operations_pb2

FILES = Path(str(resources.files("polyfleet.console")))
SENTENCE = re.compile(r'_n?\("((?:[^"\\]|\\.)*)"')
MANY = re.compile(r'_n\("[^"]*", "([^"]*)"')
PROBLEM = re.compile(r'problem="([^"]+)"')
FIELD = re.compile(r"\{\w+\}")


def sentences() -> set[str]:
    """All that pages say, and the words that they translate."""
    found = {each for path in FILES.glob("templates/*.html") for each in SENTENCE.findall(path.read_text())}
    found |= {each for path in FILES.glob("templates/*.html") for each in MANY.findall(path.read_text())}
    found |= set(PROBLEM.findall((FILES / "pages" / "guard.py").read_text())) | set(THEMES)
    found |= {SCHEDULER_GONE, GATEWAY_GONE, UNHEARD, UNKNOWN_KEY}
    states = [name.removeprefix("WORKER_STATE_").lower() for name in fleet_pb2.WorkerState.keys()]  # noqa: SIM118
    health = [name.removeprefix("DEVICE_HEALTH_").lower() for name in operations_pb2.DeviceHealth.keys()]  # noqa: SIM118
    jobs = [name.removeprefix("BENCHMARK_STATE_").lower() for name in operations_pb2.BenchmarkState.keys()]  # noqa: SIM118
    return found | {each for each in (*states, *health, *jobs) if each != "unspecified"}


def test_every_sentence_is_there_in_chinese_and_no_other() -> None:
    assert set(translations()["zh"]) == sentences()


def test_translations_keep_what_is_put_in() -> None:
    for sentence, translated in translations()["zh"].items():
        assert sorted(FIELD.findall(translated)) == sorted(FIELD.findall(sentence)), sentence
        assert translated.strip() == translated != ""


def test_pages_hold_no_scripts_and_styles_of_their_own() -> None:
    for path in FILES.glob("templates/*.html"):
        text = path.read_text()
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", text), path.name


def test_nothing_comes_from_elsewhere() -> None:
    for path in (*FILES.glob("templates/*.html"), *FILES.glob("static/*.*"), *FILES.glob("static/chat/*")):
        assert not re.search(r"""(src|href|url\()["'(=]*\s*(https?:)?//""", path.read_text()), path.name


def test_vendored_files_are_those_that_the_list_names() -> None:
    listed = json.loads((FILES / "static/vendor/packages.json").read_text())
    assert {each["file"] for each in listed} == {path.name for path in (FILES / "static/vendor").iterdir()} - {
        "packages.json"
    }


def test_numbers_read_well() -> None:
    assert [number(1234567), number(None), number(1.25, 1)] == ["1\u202f234\u202f567", "–", "1.2"]
    assert [percent(0.256), percent(None), gibibytes(2**30), gibibytes(None)] == ["26 %", "–", "1.0 GiB", "–"]
    assert [milliseconds(0.0123), milliseconds(12.3), milliseconds(None)] == ["12 ms", "12 s", "–"]
