"""The chart's release without any values, rendered by helm and run from the images by `podman kube play`: gateway,
scheduler with Ray's head, worker with its ray-node, and the pod of `helm test`, which gets a real answer.
"""

import ipaddress
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.built_images import TAG, build_small_images, podman
from tests.support.helm_chart import Object, needs_helm, pods, rendered
from tests.support.kube_play import playable
from tests.support.serve_process import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), needs_helm]
NAME = f"kube-play-{os.getpid()}"
GATEWAY, SCHEDULER, WORKER, TEST = (f"{NAME}-{part}" for part in ("gateway", "scheduler", "worker-cpu", "test"))
PODS = (SCHEDULER, GATEWAY, WORKER, TEST)
GRPC_HEALTH = """
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
with grpc.insecure_channel("127.0.0.1:{port}") as channel:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="{service}"), timeout=4)
raise SystemExit(answer.status != health_pb2.HealthCheckResponse.SERVING)
"""
READY = "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"


@pytest.fixture(scope="module")
def network() -> Iterator[ipaddress.IPv4Network]:
    """A network without a way out. Skips where podman can't run a pod on one."""
    build_small_images()
    try:
        podman("network", "create", "--internal", NAME)
        podman("pod", "create", f"--name={NAME}-try", f"--network={NAME}")
        podman("pod", "start", f"{NAME}-try")
    except AssertionError as error:
        _remove()
        pytest.skip(f"podman can't run pods on a network here: {error}")
    subnet = podman("network", "inspect", "--format={{(index .Subnets 0).Subnet}}", NAME)
    yield ipaddress.IPv4Network(subnet.strip())
    _remove()


def _remove() -> None:
    if running := podman("pod", "ps", "--format={{.Name}}", f"--filter=name={NAME}").split():
        podman("pod", "rm", "--force", *running)
    if volumes := podman("volume", "ls", "--quiet", f"--filter=name={NAME}").split():
        podman("volume", "rm", "--force", *volumes)
    podman("network", "rm", "--force", NAME)


@pytest.fixture(scope="module")
def play(network: ipaddress.IPv4Network, tmp_path_factory: pytest.TempPathFactory) -> "Play":
    return Play(network, tmp_path_factory.mktemp("manifests"))


class Play:
    """The release's pods, to be started one after another."""

    def __init__(self, network: ipaddress.IPv4Network, folder: Path) -> None:
        self._addresses = {name: str(network[10 + index]) for index, name in enumerate(PODS)}
        self.objects = rendered(values={"fullnameOverride": NAME, "image": {"tag": TAG}})
        self._folder, self._pods = folder, playable(self.objects, self._addresses)
        assert set(self._pods) == set(PODS), "the pods of a release without values"

    def address(self, name: str) -> str:
        """The pod's address."""
        return self._addresses[name]

    def start(self, name: str) -> None:
        """Have podman play the pod."""
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all(self._pods[name]))
        podman("kube", "play", f"--network={NAME}", f"--ip={self._addresses[name]}", str(path))


def logs(container: str) -> str:
    """Both streams of a container."""
    done = subprocess.run(["podman", "logs", container], capture_output=True, text=True)
    return f"--- {container}\n{done.stdout}{done.stderr}\n"


def test_release_without_values_answers_helm_test(play: Play) -> None:
    for name in (SCHEDULER, GATEWAY, WORKER):
        play.start(name)
    asked = ["podman", "exec", f"{GATEWAY}-gateway", "python", "-c", READY]
    try:
        wait_for(lambda: subprocess.run(asked, capture_output=True).returncode == 0, "a ready gateway", 180, pause=1)
        play.start(TEST)
        state = ("inspect", "--format={{.State.Status}} {{.State.ExitCode}}", f"{TEST}-generate")
        wait_for(lambda: podman(*state).split() == ["exited", "0"], "the end of helm's test", 120, pause=1)
    except BaseException:
        containers = ("scheduler-scheduler", "gateway-gateway", "worker-cpu-worker", "worker-cpu-ray-node")
        print(*(logs(f"{NAME}-{each}")[-4000:] for each in (*containers, "test-generate")), sep="\n")
        raise
    assert "The capital of France is Paris" in logs(f"{TEST}-generate")


def test_every_probe_of_the_chart_passes(play: Play) -> None:
    passed = set()
    for name, pod in pods(play.objects):
        for each in pod["containers"]:
            for probe in (each[key] for key in ("startupProbe", "readinessProbe", "livenessProbe") if key in each):
                podman("exec", f"{name}-{each['name']}", "python", "-c", as_script(probe, each["ports"]))
                passed.add(each["name"])
    assert passed == {"gateway", "scheduler", "worker"}


def as_script(probe: Object, ports: list[Object]) -> str:
    """What the kubelet does, from inside the pod."""
    if "grpc" in probe:
        return GRPC_HEALTH.format(**{"service": "", **probe["grpc"]})
    (port,) = (each["containerPort"] for each in ports if each["name"] == probe["httpGet"]["port"])
    return f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}{probe['httpGet']['path']}', timeout=4)"


def test_worker_has_its_place_in_ray(play: Play) -> None:
    asked = ["podman", "exec", f"{SCHEDULER}-scheduler", "ray", "status", f"--address={play.address(SCHEDULER)}:6379"]

    def found() -> bool:
        return "polyfleet-cpu" in subprocess.run(asked, capture_output=True, text=True).stdout

    wait_for(found, "the resource that the worker's ray-node brings", 60, pause=1)
