"""Say what this machine lacks before an environment is made. Runs on any Python 3, before anything is installed."""

import re
import shutil
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def apt_line() -> str:
    """The command between the first pair of backticks in README's first line."""
    first = README.read_text(encoding="utf-8").splitlines()[0]
    found = re.search(r"`([^`]+)`", first)
    return found.group(1) if found else first


def missing() -> list[str]:
    """What `make` needs and this machine does not have."""
    lacks = [] if (3, 10) <= sys.version_info[:2] <= (3, 13) else ["Python 3.10 to 3.13 (choose one with PYTHON=…)"]
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        lacks.append("python3-venv")
    if shutil.which("git") is None:
        lacks.append("git")
    return lacks


if __name__ == "__main__":
    if lacks := missing():
        sys.exit(f"This machine lacks {', '.join(lacks)}. On Debian or Ubuntu, as root:\n  {apt_line()}")
