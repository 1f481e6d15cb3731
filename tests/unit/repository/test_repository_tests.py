"""Tests lie where what they test lies: a folder for each package, and one below it for each of its rooms."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOTS = ("proto", "services", "workers")
# What is tested and no package of polyfleet: the folder of it.
OTHERS = {
    "bench": "bench",
    "chart": "charts/polyfleet",
    "images": "docker",
    "monitoring": "tools/dashboards",
    "repository": ".",
    "support": "tests/support",
}


def homes(folder: str) -> list[Path]:
    """Where what is tested below this folder of a kind of tests may lie."""
    return [ROOT / OTHERS[folder]] if folder in OTHERS else [ROOT / root / "polyfleet" / folder for root in ROOTS]


@pytest.mark.parametrize("kind", ["unit", "contract", "integration"])
def test_folders_of_tests_mirror_the_packages(kind: str) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"tests/{kind}"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    folders = {Path(name).parent.relative_to(f"tests/{kind}").as_posix() for name in listed.splitlines()}
    assert "." not in folders, "a test belongs into the folder of what it tests"
    homeless = [each for each in folders if not any(path.is_dir() for path in homes(each))]
    assert not homeless, "no package or room of this name"
