"""The gateway's section of the configuration file, and its checks."""

from pathlib import Path

import msgspec
import pytest

from polyfleet.gateway.config import GatewayConfig, load_config
from polyfleet.placement.policy import Policy
from polyfleet.placement.rules import RULES
from polyfleet.process.config import ConfigError
from polyfleet.text.answer.formats import FORMATS


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


def test_flags_say_how_workers_are_chosen_where_they_differ_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("gateway: {placement: {tie_seconds: 0.5, remaining_tokens: 64}}\n")
    flags = ("tie_seconds=0", "tie_ratio=0.2", "tie_ratio=1e-1")
    assert load_config(path).placement == Policy(tie_seconds=0.5, remaining_tokens=64.0)
    assert load_config(path, {"placement": flags}).placement == Policy(
        tie_seconds=0.0, tie_ratio=0.1, remaining_tokens=64.0
    )
    costs = load_config(path, {"placement": ('costs={"cuda": 2.5}', "policy=round-robin")}).placement
    assert (costs.costs, costs.policy) == ({"cuda": 2.5}, "round-robin")
    for nonsense in (
        "cost_weight: .nan",
        "joules: {cpu: .nan}",
        "late_weight: -1",
        "policy: best",
        "tenants: {a: [cpu]}",
    ):
        path.write_text(f"gateway: {{placement: {{{nonsense}}}}}\n")
        with pytest.raises(ConfigError, match=nonsense.partition(":")[0]):
            load_config(path)
    path.write_text("gateway: {placement: {ties: 1}}\n")
    with pytest.raises(ConfigError, match="unknown field `ties`"):
        load_config(path)


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("ties=1", "There is no `ties`"),
        ("tie_seconds", "Expected `float`, got `str` - at `tie_seconds`"),
        ("tie_seconds=soon", "Expected `float`, got `str` - at `tie_seconds`"),
        ("tie_seconds=nan", "Expected `float` >= 0.0 - at `tie_seconds`"),
        ("tie_ratio=-1", "Expected `float` >= 0.0 - at `tie_ratio`"),
        ("remaining_tokens=0", "Expected `float` > 0.0 - at `remaining_tokens`"),
        ("unknown_prefill_tokens_per_second=inf", "Expected `float` <= 1000000000.0"),
        ("policy=best", "Invalid enum value 'best'"),
        ("cost_weight=nan", "Expected `float` >= 0.0"),
        ('costs={"cpu": -1}', "Expected `float` >= 0.0"),
        ("costs=cheap", "Expected `object`, got `str`"),
        ("costs={", "Expected `object`, got `str`"),
        ('tenants={"a": {"rooms": []}}', "There is no `rooms`"),
    ],
)
def test_what_says_nothing_of_how_workers_are_chosen_is_refused(flag: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"--placement takes one of policy, unknown_prefill_.*, tenants: ") as caught:
        load_config(None, {"placement": (flag,)})
    assert problem in str(caught.value)


def test_the_names_that_may_be_configured_are_those_that_there_are() -> None:
    known = msgspec.json.schema(GatewayConfig)["$defs"]
    assert set(known["GatewayConfig"]["properties"]["tool_parser"]["enum"]) == {"auto", "none", *FORMATS}
    assert set(known["Policy"]["properties"]["policy"]["enum"]) == {"completion", *RULES}
