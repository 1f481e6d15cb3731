"""The images as they are run: user, files, sizes, contents, and a fleet of three containers that answers.

A first build takes minutes. Needs buildah, podman and a base image; see tests/support/built_images.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.built_images import BASE, Containers, build_small_images, images_script, podman, reference, run
from tests.support.image_files import ROOT, SMALL_IMAGES
from tests.support.serve_process import wait_for

pytestmark = pytest.mark.timeout(1800)
MODEL = "/opt/polyfleet/models/SmolLM2-135M-Instruct.Q4_1.gguf"
HEALTH = """
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
with grpc.insecure_channel("127.0.0.1:50061") as channel:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=4)
raise SystemExit(answer.status != health_pb2.HealthCheckResponse.SERVING)
"""
EVERY_IMAGE = pytest.mark.parametrize("name", SMALL_IMAGES)


@pytest.fixture(scope="module", autouse=True)
def _images() -> None:
    build_small_images()


@EVERY_IMAGE
def test_user_is_unprivileged_and_has_a_name(name: str) -> None:
    assert run(name, "/bin/sh", "-c", "id -u; id -g; id -un").split() == ["10001", "10001", "polyfleet"]


@EVERY_IMAGE
def test_user_owns_nothing_but_its_state(name: str) -> None:
    find = r"find / -xdev \( -path /proc -o -path /sys -o -path /dev \) -prune -o -writable ! -type l -print"
    writable = set(run(name, "/bin/sh", "-c", f"{find} 2>/dev/null || true", flags=("--cap-drop=ALL",)).split())
    assert "/var/lib/polyfleet" in writable
    assert {path for path in writable if path.startswith(("/opt", "/etc", "/usr", "/var/lib"))} == {
        "/var/lib/polyfleet"
    }


@EVERY_IMAGE
def test_root_is_read_only_and_memory_is_not(name: str) -> None:
    script = "touch /tmp/a /dev/shm/a && ! touch /opt/polyfleet/a /var/lib/polyfleet/a 2>/dev/null && echo well"
    assert run(name, "/bin/sh", "-c", script).strip() == "well"


@EVERY_IMAGE
def test_programs_are_on_the_path(name: str) -> None:
    wanted = {"python", "polyfleet"} | ({"ray"} if name == "scheduler" else set())
    for program in wanted:
        assert run(name, "/bin/sh", "-c", f"command -v {program}").startswith("/opt/polyfleet/venv/bin/")


@EVERY_IMAGE
def test_smoke_command_works(name: str) -> None:
    printed = images_script("smoke", name)
    assert printed.endswith(f"{reference(name)} runs\n")
    if name == "worker-cpu":
        backends = json.loads(printed[printed.index("\n{") : printed.rindex("}") + 1])["backends"]
        assert [accelerator for accelerator, each in backends.items() if each["available"]] == ["cpu"]


@EVERY_IMAGE
def test_no_compiler(name: str) -> None:
    script = "for tool in cc gcc c++ g++ clang clang++ zig ld as make; do command -v $tool; done; true"
    assert run(name, "/bin/sh", "-c", script) == ""
    assert run(name, "python", "-c", "import importlib.util as u; print(u.find_spec('ziglang'))").strip() == "None"


@pytest.mark.parametrize(
    ("name", "with_", "without"),
    [
        ("gateway", ["tokenizers"], ["torch", "ray", "numpy", "transformers"]),
        ("scheduler", ["ray"], ["torch", "tokenizers", "transformers"]),
        ("worker-cpu", ["torch", "safetensors"], ["ray", "tokenizers", "transformers", "gguf"]),
    ],
)
def test_image_has_what_it_runs_and_no_more(name: str, with_: list[str], without: list[str]) -> None:
    script = f"import importlib.util as u; print(*[n for n in {[*with_, *without]!r} if u.find_spec(n)])"
    assert run(name, "python", "-c", script).split() == with_


def test_worker_has_the_compiled_engine() -> None:
    script = "from polyfleet.kernels.cpu import library; library.load(); print(*library.instruction_sets())"
    assert "plain" in run("worker-cpu", "python", "-c", script).split()


@pytest.mark.parametrize(("name", "megabytes"), [("gateway", 250), ("scheduler", 400), ("worker-cpu", 1600)])
def test_size_over_the_base(name: str, megabytes: int) -> None:
    sizes = [int(podman("image", "inspect", "--format={{.Size}}", each)) for each in (reference(name), BASE)]
    added = (sizes[0] - sizes[1]) / 1e6
    print(f"{name}: {added:.0f} MB over its base")
    assert 0 < added <= megabytes


@EVERY_IMAGE
def test_labels_say_what_it_is(name: str) -> None:
    labels = json.loads(podman("image", "inspect", "--format={{json .Labels}}", reference(name)))
    assert labels["org.opencontainers.image.title"] == f"polyfleet/{name}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"]


def test_bill_of_materials_names_what_is_inside() -> None:
    images_script("sbom", "worker-cpu")
    bill = json.loads((ROOT / "build" / "sbom" / "worker-cpu.cdx.json").read_text())
    names = {each["name"] for each in bill["components"]}
    assert {"polyfleet", "torch", "grpcio", "libc6"} <= names
    assert "ray" not in names


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Containers]:
    (tmp_path / "fleet-token").write_text("0123456789abcdef" * 4)
    tmp_path.chmod(0o755)
    (tmp_path / "fleet-token").chmod(0o644)
    containers = Containers(tmp_path)
    joined = ("--fleet=127.0.0.1:50052", "--fleet-token-file=/run/secrets/fleet-token")
    try:
        containers.start("gateway", "python", "-m", "polyfleet.gateway", *joined)
        token = "--fleet-token-file=/run/secrets/fleet-token"
        scheduler = ("python", "-m", "polyfleet.scheduler", "--state-dir=/var/lib/polyfleet", token)
        containers.start("scheduler", *scheduler)
        worker = ("--listen=127.0.0.1:50061", "--accelerator=cpu", f"--model={MODEL}", "--model-name=smollm2")
        containers.start("worker-cpu", "python", "-m", "polyfleet.serving", *worker, *joined)
        yield containers
    finally:
        containers.remove()


def test_three_containers_generate(fleet: Containers) -> None:
    wait_for(
        lambda: fleet.execute("worker-cpu", "python", "-c", HEALTH).returncode == 0, "the worker's health", pause=1
    )
    command = ["polyfleet", "generate", "--prompt=The capital of France is", "--max-tokens=8", "--temperature=0"]
    answer = wait_for(lambda: fleet.execute("gateway", *command).stdout, "an answer", 120, pause=1)
    assert "Paris" in answer, fleet.logs("gateway") + fleet.logs("scheduler") + fleet.logs("worker-cpu")
