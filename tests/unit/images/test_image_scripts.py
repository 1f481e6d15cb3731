"""What docker/'s scripts do without a builder: the table, command lines, constraints, the bill of materials."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.support.image_files import DOCKER, ROOT, script, stages
from tests.support.image_files import DOCKERFILE as TEXT

images = script("images")
TABLE = images.read_table((DOCKER / "images.ini").read_text())
CHART = ROOT / "charts" / "polyfleet"


def options(*arguments: str) -> SimpleNamespace:
    parsed: SimpleNamespace = images.parse(["build", "--builder=podman", *arguments], TABLE)
    return parsed


def test_table_has_the_images_of_the_chart_and_no_other() -> None:
    templates = "\n".join(path.read_text() for path in sorted((CHART / "templates").rglob("*.*")))
    named = set(re.findall(r'"polyfleet\.image" \(dict "ctx" [$.\w]+ "name" "(\w+)"\)', templates))
    start = templates.index('{{- define "polyfleet.accelerators" -}}')
    accelerators = re.findall(r"^(\w+):", templates[start : templates.index("{{- end -}}", start)], re.M)
    assert named == {"gateway", "scheduler"}
    assert set(TABLE) == named | {f"worker-{name}" for name in accelerators}


def test_chart_and_images_have_one_version_and_one_model() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == images.version()
    model = re.search(r"/opt/polyfleet/models/(\S+)\.gguf", (CHART / "templates" / "_accelerators.tpl").read_text())
    assert model is not None
    assert f"{model[1]}.gguf" in TEXT


@pytest.mark.parametrize("image", TABLE.values(), ids=TABLE)
def test_table_is_sound(image: Any) -> None:
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    assert image.target in stages(TEXT)
    assert image.extra in extras
    assert re.search(r":[^/:]*\d[^/:]*$", image.base), "a pinned tag"
    assert image.summary.startswith("Polyfleet's ")
    assert " && " in image.smoke
    if image.name.startswith("worker-"):
        assert image.smoke.endswith("polyfleet backends info --json")
        assert (image.extra == "cpu") == (image.name == "worker-cpu"), "only the CPU image installs a torch"


def test_table_with_a_key_too_many_is_refused() -> None:
    with pytest.raises(TypeError):
        images.read_table("[gateway]\nbase = a:1\nsurprise = 1\n")


def test_build_command_says_what_the_table_says() -> None:
    command = images.build_command(TABLE["worker-hygon"], options("--registry=r:5000"), ["--network=host"], "c0ffee")
    arguments = dict(word.removeprefix("--build-arg=").split("=", 1) for word in command if "--build-arg=" in word)
    assert command[:2] == ["podman", "build"]
    assert f"--tag=r:5000/polyfleet/worker-hygon:{images.version()}" in command
    assert "--target=worker-vendor" in command
    assert command[-2:] == ["--network=host", "."]
    assert arguments["BASE"] == TABLE["worker-hygon"].base
    assert arguments["SETUP"] == "/opt/dtk/env.sh"
    assert arguments["REVISION"] == "c0ffee"
    assert not {"TOOLS_BASE", "TORCH_INDEX"} & set(arguments), "the Dockerfile's own defaults"
    declared = set(re.findall(r"^ARG (\w+)", TEXT, re.M))
    assert set(arguments) | {"TOOLS_BASE", "TORCH_INDEX"} == declared


def test_build_command_takes_another_base() -> None:
    words = ["worker-cuda", "--base=a/b:1", "--base-python=/p", "--tools-base=c:1", "--torch-index="]
    command = images.build_command(TABLE["worker-cuda"], options(*words), [], "")
    for argument in ("BASE=a/b:1", "BASE_PYTHON=/p", "TOOLS_BASE=c:1", "TORCH_INDEX="):
        assert f"--build-arg={argument}" in command


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["build", "worker-tpu"], "no image is called worker-tpu: there are gateway, scheduler"),
        (["build", "--base=a:1"], "--base needs the names of the images"),
        (["build", "--builder=kaniko"], "the builder is one of docker, podman, buildah"),
    ],
)
def test_wrong_arguments_end_with_a_sentence(arguments: list[str], sentence: str) -> None:
    done = subprocess.run([sys.executable, str(DOCKER / "images.py"), *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_missing_tools_end_with_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, str(DOCKER / "images.py"), "build"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert "none of docker, podman, buildah is installed: install one of them" in done.stderr
    done = subprocess.run([*command, "--builder=docker"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stderr == "docker is not installed: install it or choose another builder.\n"


def test_failing_builder_ends_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "buildah").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "buildah").chmod(0o755)
    command = [sys.executable, str(DOCKER / "images.py"), "build", "--builder=buildah", "gateway"]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:/bin:/usr/bin"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "build of gateway failed: buildah ended with 7; see above.\n"


@pytest.mark.parametrize("flags", ["--volume=/etc/pip.conf:/etc/pip.conf:ro", "--no-cache -v /a:/b", "--volume /a:/b"])
def test_docker_is_not_given_volumes_that_its_build_has_not(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFLEET_BUILD_FLAGS", flags)
    with pytest.raises(SystemExit, match="docker builds without --volume: name bases that have those files"):
        images.build(TABLE["gateway"], options("--builder=docker"))


@pytest.mark.parametrize(
    ("given", "passed"), [((), []), (("TORCH_INDEX=",), ["--torch-index="]), (("TORCH_INDEX=x",), ["--torch-index=x"])]
)
def test_make_passes_an_index_on_where_one_is_given_though_empty(given: tuple[str, ...], passed: list[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("TORCH_INDEX", "MAKEFLAGS")}
    command = ["make", "--dry-run", "images", "PUSH=0", *given]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    assert [word for word in done.stdout.split() if "torch-index" in word] == passed


def test_constraints_keep_the_numpy_that_is_there() -> None:
    lock = "click==8.5.1\nnumpy==2.2.6 ; python_full_version < '3.11'\nnumpy==2.5.5 ; python_full_version >= '3.12'\n"
    install = script("install")
    assert install.constraints(lock, None) == lock
    assert install.constraints(lock, "1.26.4") == "click==8.5.1\nnumpy==1.26.4\n"


def test_environment_sees_the_folders_it_is_given(tmp_path: Path) -> None:
    vendor = tmp_path / "vendor"
    (vendor / "more").mkdir(parents=True)
    (vendor / "vendor_torch.py").write_text("ANSWER = 42\n")
    (vendor / "more.pth").write_text(f"{vendor / 'more'}\n")
    (vendor / "more" / "vendor_more.py").write_text("")
    script("install").create(tmp_path / "venv", [str(vendor), str(tmp_path / "absent")])
    code = "import vendor_torch, vendor_more, sys; print(vendor_torch.ANSWER, sys.prefix)"
    done = subprocess.run([tmp_path / "venv/bin/python", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["42", str(tmp_path / "venv")]


def test_setup_is_sourced_without_the_arguments_and_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text('echo noise\nexport SEEN="$#-vendor"\n')
    (tmp_path / "program").write_text('#!/bin/sh\necho "$SEEN $*"\n')
    text = (DOCKER / "with-setup.sh").read_text().replace("/opt/polyfleet/venv/bin/${0##*/}", f"{tmp_path}/program")
    (tmp_path / "python").write_text(text)
    for path in ("program", "python"):
        (tmp_path / path).chmod(0o755)
    setup = {"POLYFLEET_SETUP": f"{tmp_path}/absent.sh {tmp_path}/env.sh", "PATH": os.environ["PATH"]}
    done = subprocess.run([tmp_path / "python", "-m", "x y"], env=setup, capture_output=True, text=True, check=True)
    assert done.stdout == "0-vendor -m x y\n"
    assert done.stderr == "noise\n"


STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def test_bill_lists_python_and_system_packages() -> None:
    sbom = script("sbom")
    assert list(sbom.system_packages(STATUS, "debian")) == [
        {
            "type": "library",
            "bom-ref": "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
            "name": "libc6",
            "version": "2.36-9+deb12u10",
            "purl": "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        }
    ]
    packages = {each["name"]: each for each in sbom.python_packages()}
    assert packages["pyyaml"]["purl"].startswith("pkg:pypi/pyyaml@")
    assert packages["polyfleet"]["licenses"] == [{"license": {"name": "Apache-2.0"}}]
    bill = sbom.document("polyfleet/gateway", "0.1.0", [*packages.values()])
    refs = [each["bom-ref"] for each in bill["components"]]
    assert refs == sorted(set(refs))
