"""The gateway as its image installs it: one extra in a clean environment, without torch and without Ray."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.ports import free_addresses
from tests.support.serve_process import ServeProcess, wait_for

ROOT = Path(__file__).parents[2]
FOLDERS = ("proto", "services", "workers", "tools")
FILES = ("pyproject.toml", "requirements.lock", "hatch_build.py", "README.md", "LICENSE")
ABSENT = ("torch", "ray", "numpy", "transformers", "gguf")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with `polyfleet[gateway]` alone, installed from a copy of the sources."""
    folder = tmp_path_factory.mktemp("gateway_alone")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    # A gateway needs no CPU library, so none is compiled: `false` is a compiler that fails.
    install = [str(python), str(folder / "tools" / "install.py"), ".[gateway]"]
    subprocess.run(install, env={**os.environ, "CXX": "false"}, check=True, timeout=250)
    return python


@pytest.fixture
def gateway(python: Path, stack: ServeProcess, tmp_path: Path) -> Iterator[str]:
    """gRPC address of such a gateway, serving the workers of the running stack."""
    grpc, http, metrics = free_addresses(3)
    command = [
        str(python),
        "-m",
        "polyfleet.gateway",
        "--fleet",
        stack.fleet,
        "--grpc-listen",
        grpc,
        "--http-listen",
        http,
        "--metrics-listen",
        metrics,
        "--fleet-token-file",
        str(stack.state_dir / "fleet.token"),
    ]
    with (tmp_path / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        wait_for(lambda: stack.polyfleet("models", "--gateway", grpc).returncode == 0, "the gateway to answer")
        yield grpc
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_neither_torch_nor_ray_can_be_imported(python: Path) -> None:
    script = f"import importlib.util; print([name for name in {ABSENT!r} if importlib.util.find_spec(name)])"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_it_serves(gateway: str, stack: ServeProcess) -> None:
    arguments = ("--prompt", "The capital of France is", "--max-tokens", "4", "--temperature", "0", "--json")
    done = stack.polyfleet("generate", "--gateway", gateway, *arguments)
    assert done.returncode == 0, done.stderr
    assert "Paris" in json.loads(done.stdout)["text"]
