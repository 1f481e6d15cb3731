"""The claim on a state folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from polyfleet.cli.errors import CliError
from polyfleet.cli.state_folder import claimed

HOLD = """
import sys
from pathlib import Path
from polyfleet.cli.state_folder import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_has_one_holder_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    with claimed(folder), pytest.raises(CliError, match="in use by another `polyfleet serve`"), claimed(folder):
        pass
    with claimed(folder):
        pass


def test_a_killed_holder_leaves_no_claim(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CliError), claimed(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with claimed(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CliError, match=r"wanted for state, can't be had"), claimed(tmp_path / "file"):
        pass
