"""A worker's image on a vendor's base, here a stand-in for one: a Python in a virtual environment, whose own numpy and
torch must stay as they are, and a file that sets its environment, which must be read.
"""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.support.built_images import BASE, build, images_script, podman, reference, run, why_not

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NAME = "worker-hygon"
VENDOR_BASE = "localhost/polyfleet-test-vendor:1"
CONTAINERFILE = f"""
FROM {BASE}
RUN python3 -m venv /opt/vendor && /opt/vendor/bin/pip install --quiet numpy==2.2.6 \\
    && cd /opt/vendor/lib/python3.*/site-packages && mkdir torch && echo '__version__ = "vendor"' > torch/__init__.py \\
    && mkdir /opt/dtk && echo 'export DTK_SEEN=yes' > /opt/dtk/env.sh
ENTRYPOINT ["/bin/false"]
USER 4711
"""


@pytest.fixture(scope="module", autouse=True)
def _image(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := why_not():
        pytest.skip(reason)
    context: Path = tmp_path_factory.mktemp("vendor")
    (context / "Containerfile").write_text(CONTAINERFILE)
    flags = shlex.split(os.environ.get("POLYFLEET_BUILD_FLAGS", ""))
    subprocess.run(["buildah", "build", "--layers", f"--tag={VENDOR_BASE}", *flags, str(context)], check=True)
    build([NAME], base=VENDOR_BASE, base_python="/opt/vendor/bin/python")


def test_torch_and_numpy_stay_the_vendors() -> None:
    script = "import torch, numpy; print(torch.__version__, numpy.__version__, torch.__file__, numpy.__file__)"
    torch, numpy, *files = run(NAME, "python", "-c", script).split()
    assert (torch, numpy) == ("vendor", "2.2.6")
    assert [path.startswith("/opt/vendor/lib/") for path in files] == [True, True]
    assert run(NAME, "/bin/sh", "-c", "ls -d /opt/polyfleet/venv/lib/*/site-packages/numpy || true").strip() == ""


def test_programs_have_the_vendors_environment() -> None:
    script = "import os, sys; print(os.environ['DTK_SEEN'], sys.prefix, *sys.argv[1:])"
    assert run(NAME, "python", "-c", script, "--fleet").split() == ["yes", "/opt/polyfleet/venv", "--fleet"]
    assert run(NAME, "/bin/sh", "-c", "command -v polyfleet").strip() == "/opt/polyfleet/bin/polyfleet"
    assert run(NAME, "polyfleet", "--version").strip()


def test_image_has_no_entrypoint_and_its_own_user() -> None:
    assert podman("image", "inspect", "--format={{.Config.Entrypoint}}", reference(NAME)).strip() == "[]"
    assert run(NAME, "id", "-u").strip() == "10001"


def test_smoke_finds_no_device() -> None:
    printed = images_script("smoke", NAME)
    assert '"reason": "no Hygon device is present' in printed


def test_worker_has_neither_ray_nor_a_torch_of_its_own() -> None:
    script = "import importlib.util as u; print(u.find_spec('ray'), u.find_spec('safetensors') is not None)"
    assert run(NAME, "python", "-c", script).split() == ["None", "True"]
