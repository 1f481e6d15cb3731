"""The keys file: well-formed keys or one sentence, and the key that a caller presents."""

import errno
import os
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from polyfleet.process.config import ConfigError
from polyfleet.process.key_changes import KeysUnwritable, create_key
from polyfleet.process.keys import Key, KeysFile, Role, hash_of, read_keys

KEYS = (Key("a", hash_of("one")), Key("b", hash_of("two"), Role.OPERATOR, "team"), Key("c", hash_of("\ud800")))


def write(path: Path, keys: object) -> Path:
    path.write_text(yaml.safe_dump(keys))
    return path


@pytest.mark.parametrize(
    "content",
    [
        {"keys": [{"id": "a", "hash": "short"}]},
        {"keys": [{"id": "a", "hash": "G" * 64}]},
        {"keys": [{"id": "a", "hash": "a" * 64, "role": "king"}]},
        {"keys": [{"id": "a", "hash": "a" * 64, "extra": 1}]},
        {"key": []},
        [],
    ],
)
def test_a_malformed_keys_file_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(ConfigError, match=r"keys\.yaml is not valid"):
        read_keys(write(tmp_path / "keys.yaml", content))


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"\xff", b"a: b: c", b"keys:\n- {id: a\n  hash: b}\n", b"keys: 2024-99-99", b"keys: !!bool x"],
)
def test_what_is_no_keys_file_is_said_in_one_sentence(tmp_path: Path, document: bytes) -> None:
    path = tmp_path / "keys.yaml"
    path.write_bytes(document)
    with pytest.raises(ConfigError) as caught:
        read_keys(path)
    assert str(caught.value).startswith(f"The keys file {path} is not valid: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys\.yaml can't be read: No such file or directory\.$"):
        read_keys(tmp_path / "keys.yaml")


def test_the_tenant_and_role_may_be_left_out(tmp_path: Path) -> None:
    digest = sha256(b"one").hexdigest()
    (key,) = read_keys(write(tmp_path / "keys.yaml", {"keys": [{"id": "a", "hash": digest}]})).keys
    assert key == KEYS[0]
    assert (key.role, key.tenant) == (Role.TENANT, "")


def test_a_key_is_found_by_its_secret_alone() -> None:
    assert [KeysFile(KEYS).find(secret) for secret in ("one", "two", "\ud800")] == list(KEYS)
    for secret in ("", "One", "one ", "a", KEYS[0].hash):
        assert KeysFile(KEYS).find(secret) is None
    assert KeysFile(()).find("one") is None


def test_a_key_that_can_not_be_written_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    create_key(path := tmp_path / "keys.yaml", "first")
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(KeysUnwritable, match="can't be written: No space left on device"):
        create_key(path, "second")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])
