"""The scheduler's section of the configuration file, its checks, and its ports."""

import socket
from pathlib import Path

import pytest
from tests.support.ports import free_address

from polyfleet.process.config import ConfigError
from polyfleet.scheduler.cluster.local import check_ports
from polyfleet.scheduler.config import PoolConfig, SchedulerConfig, default_state_dir, load_config, pool_wishes
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.v1 import fleet_pb2 as pb


def test_a_file_gives_the_section_and_flags_override_it(tmp_path: Path) -> None:
    file = tmp_path / "polyfleet.yaml"
    file.write_text(
        "gateway: {grpc_listen: 'x:1'}\n"
        "scheduler:\n"
        "  listen: 10.0.0.1:1\n"
        "  state_dir: /state\n"
        "  accelerators:\n"
        "    cuda: {mode: attach, address: '127.0.0.1:50061'}\n"
        "    cpu: {interpreter: /opt/python, environment: {A: b}}\n"
    )
    config = load_config(file, {"listen": "10.0.0.2:2", "advertise": None})
    assert config.listen == config.fleet_address == "10.0.0.2:2"
    assert config.state_path == Path("/state")
    assert config.launch_config("cuda").mode == "attach"
    assert config.launch_config("cpu").environment == {"A": "b"}
    assert config.launch_config("rocm").mode == "spawn"


SCALED = "scheduler: {{pools: {{a: {{model: m, accelerator: cpu, kubernetes_deployment: {}, autoscaling: {}}}}}}}"


def sharing(*shares: str) -> str:
    """Two pools of one model, each with more keys."""
    pools = [f"{name}: {{model: m, accelerator: cpu{more}}}" for name, more in zip("ab", shares, strict=True)]
    return f"scheduler: {{pools: {{{', '.join(pools)}}}}}"


def test_workers_of_pools_that_share_requests_are_of_a_revision_each() -> None:
    pools = {
        "a": PoolConfig("m", "cpu", traffic_percent=90),
        "b": PoolConfig("m", "cpu", traffic_percent=10),
        "c": PoolConfig("n", "cpu"),
    }
    config = SchedulerConfig(pools=pools)
    registry = Registry("e", pool_wishes(config))
    for name in pools:
        registry.register(pb.WorkerInfo(worker_id=f"w-{name}", deployment=name), 1, 0.0)
    shown = registry.snapshot()
    assert [(each.name, each.traffic_percent) for each in shown.pools] == [("a", 90), ("b", 10), ("c", 0)]
    assert [each.info.revision for each in shown.workers] == [1, 1, 0]


def test_pools_are_wishes_that_snapshots_carry() -> None:
    pools = {"b": PoolConfig("m", "cuda", 3), "a": PoolConfig("n", "cpu")}
    wishes = pool_wishes(SchedulerConfig(pools=pools))
    assert [(w.name, w.model_name, list(w.accelerators), w.workers) for w in wishes] == [
        ("a", "n", ["cpu"], 1),
        ("b", "m", ["cuda"], 3),
    ]
    registry = Registry("epoch", wishes)
    assert tuple(registry.snapshot().pools) == wishes
    registry.set_deployments([pb.ModelDeployment(name="d")])
    assert tuple(registry.snapshot().pools) == wishes


def test_advertise_is_where_workers_dial() -> None:
    assert SchedulerConfig(listen="0.0.0.0:1", advertise="scheduler:1").fleet_address == "scheduler:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduler: {lisen: x}", "unknown field `lisen`"),
        ("scheduler: {settle_seconds: soon}", "Expected `float`, got `str` - at `$.scheduler.settle_seconds`"),
        ("scheduler: {accelerators: {GPU: {}}}", "accelerators: must be the name of an accelerator"),
        ("scheduler: {pools: {a: {model: m, accelerator: auto}}}", "pools.a.accelerator: auto is no accelerator"),
        ("scheduler: {pools: {a: {model: m, accelerator: cpu, workers: -1}}}", "pools.a: needs the name of a model"),
        (sharing(", traffic_percent: 90", ", traffic_percent: 20"), "of model m (a, b) must add up to 100"),
        (sharing(", traffic_percent: 100", ""), "of model m (a, b) must add up to 100"),
        (sharing(", traffic_percent: 150", ", traffic_percent: -50"), "of model m (a, b) must add up to 100"),
        ("scheduler: {pools: {a: {accelerator: cpu}}}", "missing required field `model`"),
        (SCALED.format("d", "{min_workers: 3, max_workers: 2}"), "pools.a.autoscaling: needs 0 min_workers or more"),
        (SCALED.format("d", "{max_workers: 0}"), "pools.a.autoscaling: needs 0 min_workers or more"),
        (SCALED.format("d", "{kv_use: -1}"), "pools.a.autoscaling.kv_use: must be 0 or more"),
        (SCALED.format("d", "{idle_seconds: .nan}"), "pools.a.autoscaling.idle_seconds: must be 0 or more"),
        (SCALED.format("''", "{}"), "pools.a.kubernetes_deployment: must name the Deployment"),
        ("scheduler: {accelerators: {cuda: {mode: attach}}}", "accelerators.cuda.address: attach needs"),
        ("scheduler: [1]", "Expected `object`, got `array` - at `$.scheduler`"),
        ("scheduler: {a: [", "is not valid"),
        ("- 1", "Expected `object`, got `array`"),
    ],
)
def test_a_wrong_file_is_named_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "polyfleet.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml can't be read: No such file"):
        load_config(tmp_path / "nowhere.yaml", {})


def test_the_state_folder_follows_xdg() -> None:
    assert default_state_dir({"XDG_STATE_HOME": "/x"}) == Path("/x/polyfleet")
    assert default_state_dir({}) == Path.home() / ".local/state/polyfleet"


def test_a_port_in_use_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"{address} is in use: .* with --listen\."):
            check_ports(SchedulerConfig(listen=address))
        free = free_address()
        with pytest.raises(ConfigError, match=rf"{address} is in use: .* with --metrics-listen\."):
            check_ports(SchedulerConfig(listen=free, metrics_listen=address))


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:", "127.0.0.1:70000", ":1", "127.0.0.1:x"])
def test_an_address_needs_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="--listen must be host:port"):
        check_ports(SchedulerConfig(listen=address))
