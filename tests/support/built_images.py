"""The images that need no vendor's base, built by buildah and run by podman. Only where both can be had, with a base.

POLYFLEET_TEST_BASE names the base image, any with python3 and its venv (default: the table's);
POLYFLEET_BUILD_FLAGS holds flags for the builder, such as mounts of a package index's configuration.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.image_files import DOCKER, SMALL_IMAGES, script

TAG = "test"
BASE = os.environ.get(
    "POLYFLEET_TEST_BASE", script("images").read_table((DOCKER / "images.ini").read_text())["gateway"].base
)
# As the chart's pods: no privilege, nothing to write to but what is mounted.
RESTRICTED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")


def reference(name: str) -> str:
    """The built image's name."""
    return f"localhost/polyfleet/{name}:{TAG}"


def podman(*arguments: str, timeout: float = 120) -> str:
    """What podman prints; a failure shows its errors."""
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout


def run(name: str, *command: str, flags: Sequence[str] = RESTRICTED) -> str:
    """What a command prints in a container of an image, without a network."""
    return podman("run", "--rm", "--network=none", *flags, reference(name), *command)


def images_script(*arguments: str, timeout: float = 1500) -> str:
    """What docker/images.py prints for these arguments."""
    command = [sys.executable, str(DOCKER / "images.py"), *arguments, "--builder=buildah", f"--tag={TAG}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def build(names: Sequence[str], *, base: str = BASE, base_python: str = "") -> None:
    """Build images on a base. torch comes from pip's own index, so that its configuration decides."""
    more = [f"--base-python={base_python}"] if base_python else []
    images_script("build", *names, f"--base={base}", f"--tools-base={BASE}", "--torch-index=", *more)


def why_not() -> str:
    """Why nothing can be built here; empty when it can."""
    if missing := [tool for tool in ("buildah", "podman") if not shutil.which(tool)]:
        return f"{' and '.join(missing)} not installed"
    if subprocess.run(["podman", "image", "exists", BASE], capture_output=True).returncode == 0:
        return ""
    try:
        pulled = subprocess.run(["podman", "pull", "--quiet", BASE], capture_output=True, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        pulled = False
    return "" if pulled else f"the base image {BASE} can't be pulled: POLYFLEET_TEST_BASE may name another"


def build_small_images() -> None:
    """Build all three, or skip with the reason."""
    if reason := why_not():
        pytest.skip(reason)
    build(SMALL_IMAGES)


class Containers:
    """Containers that share one network, which has nothing but loopback. They end with `remove`."""

    def __init__(self, secrets: Path) -> None:
        self._secrets = secrets
        self._names: list[str] = []

    def start(self, name: str, *command: str) -> None:
        """Start a container of the image, under the image's name."""
        network = f"--network=container:{self.container(self._names[0])}" if self._names else "--network=none"
        mounts = (f"--volume={self._secrets}:/run/secrets:ro", "--volume=/var/lib/polyfleet")
        arguments = ("run", "--detach", f"--name={self.container(name)}", network, *RESTRICTED, *mounts)
        self._names.append(name)
        podman(*arguments, reference(name), *command)

    def container(self, name: str) -> str:
        """The container's name on this machine."""
        return f"polyfleet-test-{os.getpid()}-{name}"

    def execute(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container that runs."""
        return subprocess.run(
            ["podman", "exec", self.container(name), *command], capture_output=True, text=True, timeout=120
        )

    def logs(self, name: str) -> str:
        """Both streams of what it printed."""
        done = subprocess.run(["podman", "logs", self.container(name)], capture_output=True, text=True)
        return done.stdout + done.stderr

    def remove(self) -> None:
        """Stop and remove all, the last first."""
        for name in reversed(self._names):
            podman("rm", "--force", "--time=10", "--volumes", self.container(name))
