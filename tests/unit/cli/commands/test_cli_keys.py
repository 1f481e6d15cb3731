"""`polyfleet keys`: the key is shown once, its hash is kept, the gateway accepts it."""

import json
import stat
from pathlib import Path

from click.testing import CliRunner, Result

from polyfleet.cli.main import cli
from polyfleet.gateway.auth import Authenticator
from polyfleet.process.keys import KeysFile, Role, read_keys


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
    assert [key.id for key in read_keys(path).keys] == ["team-a", "ops"]
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


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ("keys", *arguments))


def test_keys_are_listed_limited_and_revoked(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.yaml")
    key = create("a", "--max-priority", "-1", "--days", "3", "--keys-file", path).stdout.strip()
    create("b", "--tenant", "a", "--keys-file", path)
    assert keys("limit", "a", "--weight", "2", "--tokens-per-minute", "60", "--keys-file", path).exit_code == 0
    assert keys("limit", "a", "--max-concurrent", "5", "--keys-file", path).exit_code == 0
    listed = json.loads(keys("list", "--keys-file", path, "--json").stdout)
    assert [(each["id"], each["max_priority"], each["weight"]) for each in listed] == [("a", -1, 2), ("b", 100, 2)]
    assert (listed[0]["tokens_per_minute"], listed[0]["max_concurrent"]) == (60, 5)
    assert listed[0]["expires"].startswith("20")
    assert "MAX CONCURRENT" in keys("list", "--keys-file", path).stdout
    assert Authenticator(Path(path)).check(f"Bearer {key}").max_priority == -1
    assert keys("revoke", "a", "--keys-file", path).exit_code == 0
    assert [tenant.id for tenant in read_keys(Path(path)).tenants] == ["a"]  # which b still belongs to
    keys("revoke", "b", "--keys-file", path)
    assert read_keys(Path(path)) == KeysFile(())


def test_limits_that_mean_nothing_are_refused_and_the_file_left(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    create("a", "--keys-file", str(path))
    before = path.read_text()
    for arguments in (("limit", "z", "--weight", "2"), ("limit", "a", "--weight", "nan"), ("revoke", "z")):
        assert keys(*arguments, "--keys-file", str(path)).exit_code == 2, arguments
    assert create("c", "--max-priority", "101", "--keys-file", str(path)).exit_code == 2
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["keys.yaml"]
