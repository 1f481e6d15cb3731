"""What the chart and compose.yaml start is what the processes take: flags, configuration files, ports, keys."""

import importlib
import json
import re
import warnings
from base64 import b64decode
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from msgspec import structs
from tests.support.helm_chart import (
    CHART,
    RELEASES,
    ROOT,
    container,
    containers,
    find,
    needs_helm,
    pods,
    release,
    rendered,
)
from tests.support.image_files import DOCKERFILE, stages

from polyfleet.cli.commands.generate import generate
from polyfleet.console.command import main as console
from polyfleet.console.config import load_config as load_console_config
from polyfleet.gateway.command import main as gateway
from polyfleet.gateway.config import Limits
from polyfleet.gateway.config import load_config as load_gateway_config
from polyfleet.process.keys import Tenant, read_keys
from polyfleet.scheduler.command import main as scheduler
from polyfleet.scheduler.config import load_config as load_scheduler_config
from polyfleet.serving.command import config_of
from polyfleet.serving.command import main as serving

COMMANDS = {"polyfleet.gateway": gateway, "polyfleet.scheduler": scheduler, "polyfleet.serving": serving}
COMMANDS["polyfleet.console"] = console
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
ROLES = ("gateway", "scheduler", "worker", "operator")
INIT = ["dumb-init", "--single-child", "--"]
every_release = pytest.mark.parametrize("name", RELEASES)


@pytest.fixture(scope="module")
def ray_start() -> click.Command:
    """The command `ray start`; importing it takes seconds and warns of Ray's own affairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        command: click.Command = importlib.import_module("ray.scripts.scripts").start
    return command


def parsed(command: click.Command, arguments: list[str]) -> dict[str, Any]:
    """The options as the command understands them; fails as the process would."""
    words = [word.replace("$(POD_IP)", "10.0.0.7") for word in arguments]
    return dict(command.make_context("test", words).params)


def worker_pods(name: str) -> list[tuple[str, dict[str, Any]]]:
    return [(each, pod) for each, pod in pods(release(name)) if "-worker-" in each]


def scheduler_config(name: str, folder: Path) -> Any:
    path = folder / "scheduler.yaml"
    path.write_text(find(release(name), "ConfigMap", "polyfleet-scheduler")["data"]["scheduler.yaml"])
    return load_scheduler_config(path, {})


@needs_helm
@every_release
def test_workers_take_their_arguments(name: str, tmp_path: Path) -> None:
    fleet = scheduler_config(name, tmp_path).advertise
    for _, pod in worker_pods(name):
        worker = container(pod, "worker")
        assert worker["command"] == [*INIT, "python", "-m", "polyfleet.serving"]
        config = config_of(parsed(serving, worker["args"]))
        assert (config.listen, config.metrics_listen, config.fleet) == ("0.0.0.0:50061", "0.0.0.0:9100", fleet)
        assert (config.advertise_host, config.load and config.load.deployment) == ("10.0.0.7", config.deployment)
        assert {port["name"]: port["containerPort"] for port in worker["ports"]} == {
            "worker": 50061,
            "metrics": 9100,
            "transfer": 50062,
        }


@needs_helm
@every_release
def test_the_gateway_takes_its_configuration(name: str, tmp_path: Path) -> None:
    objects = release(name)
    path = tmp_path / "gateway.yaml"
    path.write_text(find(objects, "ConfigMap", "polyfleet-gateway")["data"]["gateway.yaml"])
    config = load_gateway_config(path)
    listen = (config.grpc_listen, config.http_listen, config.metrics_listen)
    assert listen == ("0.0.0.0:50051", "0.0.0.0:8000", "0.0.0.0:9101")
    headless = find(objects, "Service", "polyfleet-gateway-headless")["spec"]
    assert config.peers == ("polyfleet-gateway-headless.llm.svc:50053",)
    assert config.peer_listen == "0.0.0.0:50053"
    assert ("peer", 50053) in {(port["targetPort"], port["port"]) for port in headless["ports"]}
    assert config.limits.drain_seconds == config.limits.max_request_seconds
    pod = dict(pods(objects))["polyfleet-gateway"]
    for file in (config.fleet_token_file, config.keys_file, config.tls_cert, config.tls_key):
        assert not file or file in mounted_files(pod, "gateway")
    assert bool(config.tls_cert) is (name in ("air-gapped", "high-availability"))
    probes = {each: container(pod, "gateway")[f"{each}Probe"]["httpGet"] for each in ("startup", "liveness")}
    assert {(each["path"], each["port"], each.get("scheme", "HTTP")) for each in probes.values()} == {
        ("/healthz", "metrics", "HTTP")
    }
    scheme = "HTTPS" if config.tls_cert else "HTTP"
    ready = {"path": "/readyz", "port": "http", "scheme": scheme}
    assert container(pod, "gateway")["readinessProbe"]["httpGet"] == ready


@needs_helm
@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("tls", [False, True])
def test_the_console_takes_its_configuration(tls: bool, keys: bool, tmp_path: Path) -> None:
    links = {name: f"http://{name}" for name in ("prometheus", "grafana", "runbooks")}
    shown = {"enabled": True, "rootPath": "/fleet", "links": links}
    values: dict[str, Any] = {"console": shown, "fleetKeys": {"enabled": keys}}
    if tls:
        internal = {"enabled": True, "existingSecrets": {each: each for each in ROLES}}
        values["tls"] = {"enabled": True, "existingSecret": "door", "internal": internal}
    objects = rendered(values=values)
    path = tmp_path / "console.yaml"
    path.write_text(find(objects, "ConfigMap", "polyfleet-console")["data"]["console.yaml"])
    config = load_console_config(path)
    assert (config.listen, config.root_path) == ("0.0.0.0:8080", "/fleet")
    assert [config.prometheus_url, config.grafana_url, config.runbooks_url] == list(links.values())
    assert (config.fleet, config.gateway) == ("polyfleet-scheduler.llm.svc:50052", "polyfleet-gateway.llm.svc:50051")
    pod = dict(pods(objects))["polyfleet-console"]
    named = {config.fleet_token_file, config.keys_file, config.gateway_ca, config.tls_cert, config.tls_key}
    assert named - {""} <= mounted_files(pod, "console")
    assert config.gateway_tls is tls is bool(config.tls_cert) is bool(config.fleet_tls_dir)
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    token = next(each["key"] for each in secrets["fleet"]["items"] if each["path"] == "fleet-token")
    assert token == ("operator-token" if keys else "fleet-token")
    if tls:
        assert secrets["operator-tls"]["secretName"] == "operator"
        assert f"{config.fleet_tls_dir}/tls.key" in mounted_files(pod, "console")
    started = container(pod, "console")
    assert started["command"] == [*INIT, "python", "-m", "polyfleet.console"]
    assert parsed(console, started["args"])["config"] == Path("/etc/polyfleet/config/console.yaml")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert started[probe]["httpGet"] == {"path": "/healthz", "port": "pages", "scheme": "HTTPS" if tls else "HTTP"}


@needs_helm
def test_there_is_no_console_unless_it_is_wanted() -> None:
    assert not [each for each in release("defaults") if each["metadata"]["name"].endswith("-console")]


@needs_helm
@every_release
def test_the_scheduler_takes_its_configuration(name: str, tmp_path: Path) -> None:
    config = scheduler_config(name, tmp_path)
    pod = dict(pods(release(name)))["polyfleet-scheduler"]
    assert config.gateway == "polyfleet-gateway.llm.svc:50051"
    assert bool(config.gateway_ca_file) is (name in ("air-gapped", "high-availability"))
    assert {config.gateway_key_file, config.gateway_ca_file} - {""} <= mounted_files(pod, "scheduler")
    assert {config.fleet_token_file, config.keys_file} <= mounted_files(pod, "scheduler")
    state = {mount["mountPath"] for mount in container(pod, "scheduler")["volumeMounts"]}
    assert config.state_dir in state
    table = (CHART / "templates/_accelerators.tpl").read_text()
    assert config.accelerators.keys() == set(re.findall(r"^([a-z]+):", table, re.MULTILINE))
    assert {(each.mode, each.address) for each in config.accelerators.values()} == {("attach", "127.0.0.1:50061")}
    script = container(pod, "scheduler")["args"][0]
    (line,) = re.findall(r"python -m polyfleet\.scheduler (.*) &", script)
    assert parsed(scheduler, line.replace('"', "").split())["address"] == "$POD_IP:6379"


@needs_helm
@every_release
def test_process_1_of_every_container_is_the_init_of_the_images(name: str) -> None:
    (entrypoint,) = (each.text for each in stages(DOCKERFILE)["service"] if each.word == "ENTRYPOINT")
    init, *rest = json.loads(entrypoint)
    assert [Path(init).name, *rest] == INIT
    for _, pod in pods(release(name)):
        for each in containers(pod):
            assert each["command"][: len(INIT)] == INIT


@needs_helm
def test_launchers_find_in_their_container_what_the_scheduler_tells_them(tmp_path: Path) -> None:
    config = scheduler_config("defaults", tmp_path)
    (_, pod), *_ = worker_pods("defaults")
    assert config.fleet_token_file in mounted_files(pod, "ray-node")
    assert config.state_dir in {mount["mountPath"] for mount in container(pod, "ray-node")["volumeMounts"]}


@needs_helm
@every_release
def test_ray_takes_its_arguments_and_stays_behind_its_ports(name: str, ray_start: click.Command) -> None:
    objects = release(name)
    allowed = [*range(6379, 6386), *range(6400, 6500)]
    for pod_name, pod in pods(objects):
        for each in containers(pod):
            if each["name"] not in ("scheduler", "ray-node"):
                continue
            options = parsed(ray_start, each["args"][2:])
            ports = {value for key, value in options.items() if key.endswith("_port") and isinstance(value, int)}
            assert ports - {8265} <= set(allowed)  # the dashboard is off
            assert options["num_cpus"] == options["num_gpus"] == 0
            environment = {entry["name"]: entry.get("value") for entry in each["env"]}
            assert environment["RAY_AUTH_MODE"] == "token"
            assert environment["RAY_AUTH_TOKEN_PATH"] in mounted_files(pod, each["name"])
            if each["name"] == "ray-node":
                accelerator = parsed(serving, container(pod, "worker")["args"])["accelerator"]
                assert options["resources"] == f'{{"polyfleet-{accelerator}": 1}}', pod_name
            else:
                assert options["include_dashboard"] is False


@needs_helm
def test_the_helm_test_calls_a_command_that_there_is() -> None:
    arguments = find(release("defaults"), "Pod", "polyfleet-test")["spec"]["containers"][0]["args"]
    (line,) = re.findall(r'polyfleet generate "\$@" (.*)\)', arguments[0])
    options = parsed(generate, [*arguments[2:], *line.replace('"$prompt"', "x").split(), "--ca-file=/ca.crt", "--tls"])
    assert (options["model"], options["temperature"]) == ("smollm2-135m-instruct", 0)


@needs_helm
def test_the_gateway_reads_the_keys_that_the_chart_makes(tmp_path: Path) -> None:
    operator = {"id": "ops", "hash": "b" * 64, "role": "operator", "maxPriority": -2, "expires": "2030-01-31T00:00:00Z"}
    tenants = [{"id": "ops", "weight": 2.5, "tokensPerMinute": 12_000_000, "maxConcurrent": 3}, {"id": "first"}]
    secret = find(rendered(values={"auth": {"keys": [operator], "tenants": tenants}}), "Secret", "polyfleet-keys")
    path = tmp_path / "keys.yaml"
    path.write_bytes(b64decode(secret["data"]["keys.yaml"]))
    found = read_keys(path)
    assert [(key.id, key.role.value) for key in found.keys] == [("first", "tenant"), ("ops", "operator")]
    assert (found.keys[1].max_priority, found.keys[1].expires) == (-2, datetime(2030, 1, 31, tzinfo=timezone.utc))
    assert found.tenants == (Tenant("ops", 2.5, 12_000_000, 3), Tenant("first"))


def test_the_schema_knows_the_gateway_s_limits() -> None:
    gateway_schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]["gateway"]
    limits = {field.name for field in structs.fields(Limits)}
    assert gateway_schema["properties"]["limits"]["properties"].keys() == limits - {
        "max_request_seconds",
        "drain_seconds",
    }


def test_the_schema_s_options_are_the_worker_s() -> None:
    options = yaml.safe_load((CHART / "values.schema.json").read_text())["definitions"]["options"]["properties"]
    flags = {parameter.name for parameter in serving.params}
    assert {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in options} <= flags


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_compose_starts_what_there_is(service: str) -> None:
    described = COMPOSE["services"][service]
    words = [str(word) for word in described["command"]]
    module = words.index("-m") + 1
    options = parsed(COMMANDS[words[module]], words[module + 1 :])
    secrets = {f"/run/secrets/{name}" for name in described["secrets"]}
    assert {
        str(options[key]) for key in options if key.endswith(("token_file", "keys_file")) and options[key]
    } <= secrets
    assert described["read_only"] is True
    assert described["cap_drop"] == ["ALL"]
    assert described["tmpfs"] == ["/tmp:exec"], "Docker's own default is noexec, and Triton loads what it compiles"
    assert described["user"] == "10001:10001"
    assert all(port.startswith("127.0.0.1:") for port in described.get("ports", []))
    assert set(described["secrets"]) <= COMPOSE["secrets"].keys()


def mounted_files(pod: dict[str, Any], name: str) -> set[str]:
    """Paths of the files that Secrets bring into a container."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    return {
        f"{mount['mountPath']}/{item['path']}"
        for mount in container(pod, name)["volumeMounts"]
        for item in volumes[mount["name"]].get("secret", {}).get("items", [])
    }
