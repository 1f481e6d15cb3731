"""The alerts: each fires when it should, with the sentence that it should, and not a bit earlier."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.alert_cases import CASES, Case
from tests.support.monitoring import RULES, RUNBOOKS, Rule, alerts, exported, metrics_in, needs_promtool, rules

NAMES = sorted({rule["alert"] for rule in alerts()})
HEADINGS = ("## Means", "## Impact", "## Check", "## Act", "## False alarm")


def promtool(*arguments: str) -> str:
    """What it printed; fails the test when it is not content."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def document(case: Case) -> dict[str, object]:
    """The case as promtool reads it."""
    expected = [
        {
            "exp_labels": {"severity": each.severity, **each.labels},
            "exp_annotations": {"summary": each.summary, "runbook": f"docs/runbooks/{case.alert}.md"},
        }
        for each in case.fires
    ]
    checked = {"eval_time": f"{case.at}m", "alertname": case.alert, "exp_alerts": expected}
    test = {
        "interval": case.interval,
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [checked],
    }
    return {"rule_files": [str(RULES)], "evaluation_interval": case.interval, "tests": [test]}


@needs_promtool
def test_the_rules_are_sound() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "--lint-fatal", str(RULES))


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.what}")
def test_alerts_fire_when_they_should(case: Case, tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text(json.dumps(document(case)))  # JSON is YAML
    promtool("test", "rules", str(tmp_path / "case.yaml"))


def test_every_alert_is_seen_firing_and_not_firing() -> None:
    assert {case.alert for case in CASES if case.fires} == set(NAMES)
    assert {case.alert for case in CASES if not case.fires} == set(NAMES)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: f"{rule['alert']} {rule['labels']['severity']}")
def test_every_alert_says_what_to_do(rule: Rule) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"


@pytest.mark.parametrize("name", NAMES)
def test_every_alert_has_its_page(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    places = [text.find(heading) for heading in HEADINGS]
    assert places == sorted(places)
    assert places[0] > 0
    check = text[text.index("## Check") : text.index("## Act")]
    assert "```" in check, "the page names no command"


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_links_of_pages_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link


def test_no_page_is_left_of_an_alert_that_is_gone() -> None:
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md") if path.stem != "README") == NAMES
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == set(NAMES)


def test_rules_ask_only_for_what_is_there() -> None:
    known = exported().keys() | {rule["record"] for rule in rules() if "record" in rule}
    assert set().union(*(metrics_in(rule["expr"]) for rule in rules())) - known == set()
    assert not [rule for rule in rules() if "vector(" in rule["expr"]]
