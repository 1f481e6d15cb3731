"""`polyfleet keys create`: the key is shown once, its hash is kept, the gateway accepts it."""

import json
import stat
from pathlib import Path

from click.testing import CliRunner, Result

from polyfleet.cli.main import cli
from polyfleet.gateway.auth import Authenticator
from polyfleet.process.keys import Role, read_keys


def create(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ("keys", "create", *arguments))


def test_the_gateway_accepts_a_created_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key = create("team-a", "--keys-file", str(path)).stdout.strip()
    principal = Authenticator(path).check(f"Bearer {key}")
    assert (principal.key_id, principal.role) == ("team-a", Role.TENANT)
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_are_added_to_those_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    create("team-a", "--keys-file", str(path))
    done = create("ops", "--keys-file", str(path), "--role", "operator", "--json")
    record = json.loads(done.stdout)
    assert (record["id"], record["role"]) == ("ops", "operator")
    assert [key.id for key in read_keys(path)] == ["team-a", "ops"]
    assert Authenticator(path).check(f"Bearer {record['key']}").role is Role.OPERATOR


def test_keys_of_one_tenant(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    made = [("team-a",), ("batch", "--tenant", "team-a"), ("team-b",)]
    keys = [create(*arguments, "--keys-file", str(path)).stdout.strip() for arguments in made]
    authenticator = Authenticator(path)
    assert [authenticator.check(f"Bearer {key}").tenant for key in keys] == ["team-a", "team-a", "team-b"]
    record = json.loads(create("c", "--tenant", "team-b", "--keys-file", str(path), "--json").stdout)
    assert (record["id"], record["tenant"]) == ("c", "team-b")
    refused = create("d", "--tenant", "a b", "--keys-file", str(path))
    assert refused.exit_code == 2
    assert "is no tenant" in refused.stderr


def test_an_id_is_taken_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    create("team-a", "--keys-file", str(path))
    before = path.read_text()
    again = create("team-a", "--keys-file", str(path))
    assert again.exit_code == 2
    assert "has a key team-a already" in again.stderr
    assert path.read_text() == before


def test_bad_ids_and_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    assert create("a b", "--keys-file", str(path)).exit_code == 2
    path.write_text("keys: nonsense\n")
    refused = create("team-a", "--keys-file", str(path))
    assert refused.exit_code == 2
    assert f"The keys file {path} is not valid" in refused.stderr
    unwritable = create("team-a", "--keys-file", str(tmp_path / "absent" / "keys.yaml"))
    assert unwritable.exit_code == 1
    assert "can't be written: No such file or directory" in unwritable.stderr
