"""The claim on a state folder, and the fleet token in it."""

import subprocess
import sys
from pathlib import Path

import pytest

from polyfleet.cli.errors import CliError
from polyfleet.cli.state_folder import claimed, known_token, made_token, published
from polyfleet.wire.auth import read_token

HOLD = """
import sys
from pathlib import Path
from polyfleet.cli.state_folder import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

PUBLISH = """
import sys
from pathlib import Path
from polyfleet.cli.state_folder import published
with published("127.0.0.1:7001", Path(sys.argv[1])):
    print("published", flush=True)
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


def test_the_token_is_random_private_and_kept(tmp_path: Path) -> None:
    file = made_token(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    token = read_token(file)
    assert len(token) == 64
    assert read_token(made_token(tmp_path)) == token
    (tmp_path / "other").mkdir()
    assert read_token(made_token(tmp_path / "other")) != token
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("spoil", ["readable", "empty", "link"])
def test_a_token_that_others_may_know_or_nobody_can_use_is_made_anew(tmp_path: Path, spoil: str) -> None:
    file = made_token(tmp_path)
    token = read_token(file)
    if spoil == "readable":
        file.chmod(0o640)
    elif spoil == "empty":
        file.write_text("")
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    again = made_token(tmp_path)
    assert read_token(again) != token
    assert again.stat().st_mode & 0o777 == 0o600
    assert not again.is_symlink()


def test_a_token_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"wanted for the fleet token, can't be written"):
        made_token(tmp_path / "none")


def test_commands_of_this_user_find_the_token_by_port_while_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "mine").mkdir()
    file = made_token(tmp_path / "mine")
    with published("127.0.0.1:7001", file):
        for address in ("127.0.0.1:7001", "localhost:7001", "[::1]:7001"):
            found = known_token(address)
            assert found is not None, address
            assert read_token(found) == read_token(file)
        assert known_token("127.0.0.1:7002") is None
        assert known_token("192.0.2.1:7001") is None
        file.unlink()
        assert known_token("127.0.0.1:7001") is None
    assert list((tmp_path / "home" / "polyfleet" / "tokens").iterdir()) == []


def test_the_token_that_a_killed_one_left_is_not_shown_to_whoever_has_its_port_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    command = [sys.executable, "-c", PUBLISH, str(made_token(tmp_path))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as publisher:
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == b"published\n"
        assert known_token("127.0.0.1:7001") is not None
        publisher.kill()
    assert (tmp_path / "home" / "polyfleet" / "tokens" / "7001").is_symlink()
    assert known_token("127.0.0.1:7001") is None
    with published("127.0.0.1:7001", made_token(tmp_path)):
        assert known_token("127.0.0.1:7001") is not None


def test_a_default_folder_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with published("127.0.0.1:7001", made_token(tmp_path)):
        assert known_token("127.0.0.1:7001") is None
