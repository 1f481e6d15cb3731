"""What the lock pins can be installed on a Mac with Apple silicon: by the names of wheels that `make lock` recorded."""

from collections import defaultdict
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags, mac_platforms
from packaging.utils import canonicalize_name, parse_wheel_filename
from tests.support import requirements

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "tests" / "data" / "macos_arm64_wheels.txt").read_text(encoding="utf-8").split("\n")
WHEELS = defaultdict[str, list[str]](list)
for _python, _, _wheel in (line.partition(" ") for line in LINES if line):
    WHEELS[_python].append(_wheel)
PLATFORMS = list(mac_platforms((14, 0), "arm64"))


def applies(marker: Marker | None, python: str) -> bool:
    mac = {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "extra": ""}
    mac |= {"python_version": python, "python_full_version": f"{python}.1", "implementation_name": "cpython"}
    return marker is None or marker.evaluate(mac | {"platform_python_implementation": "CPython"})


def test_every_python_that_is_supported_is_recorded() -> None:
    assert list(WHEELS) == ["3.10", "3.11", "3.12", "3.13"]


@pytest.mark.parametrize("python", WHEELS)
def test_the_pinned_versions_have_wheels_for_apple_silicon(python: str) -> None:
    version = (3, int(python.partition(".")[2]))
    fitting = {*cpython_tags(version, platforms=PLATFORMS), *compatible_tags(version, platforms=PLATFORMS)}
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    versions = {canonicalize_name(each.name): each for each in pinned if applies(each.marker, python)}
    found = defaultdict[str, bool](bool)
    for wheel in WHEELS[python]:
        name, number, _, tags = parse_wheel_filename(wheel)
        assert versions[name].specifier.contains(number, prereleases=True), f"`make lock` records it again: {wheel}"
        found[name] |= not fitting.isdisjoint(tags)
    assert [name for name, fits in found.items() if not fits] == []


@pytest.mark.parametrize("python", WHEELS)
def test_all_that_an_agent_needs_is_among_them(python: str) -> None:
    project = requirements.read((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = map(Requirement, requirements.required(project, ["cpu"]))
    names = {canonicalize_name(each.name) for each in wanted if applies(each.marker, python)}
    assert "torch" in names
    assert names <= {parse_wheel_filename(each)[0] for each in WHEELS[python]}
