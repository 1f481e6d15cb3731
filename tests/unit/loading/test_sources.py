"""Where a model lies that somebody names."""

import sys
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import pytest

from polyfleet.loading.sources import PATTERNS, find_model, hub_cache, local_model, model_name
from polyfleet.models.errors import ModelFileError

REVISION = "a" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def cached(cache: Path, *revisions: str, main: str = "") -> Path:
    folder = cache / "models--owner--some-model"
    for revision in revisions:
        touch(*(folder / "snapshots" / revision / name for name in ("config.json", "model.safetensors")))
    if main:
        touch(folder / "refs" / "main")
        (folder / "refs" / "main").write_text(main)
    return folder


def test_files_and_folders(tmp_path: Path) -> None:
    whole, alone = tmp_path / "folder", tmp_path / "one"
    touch(whole / "config.json", whole / "model.safetensors", whole / "extra.gguf")
    touch(alone / "config.json", alone / "m.Q4_0.gguf")  # as repositories of GGUF files have it
    assert find_model("folder") == str(tmp_path / "folder")
    assert find_model("one") == find_model("one/m.Q4_0.gguf") == str(tmp_path / "one" / "m.Q4_0.gguf")
    assert find_model("missing.gguf") == str(tmp_path / "missing.gguf")  # whose absence its reader tells
    assert (model_name("one/m.Q4_0.gguf"), model_name("folder")) == ("m.Q4_0", "folder")
    (tmp_path / "empty").mkdir()
    assert local_model(tmp_path / "empty") == tmp_path / "empty"


def test_a_folder_with_a_split_model(tmp_path: Path) -> None:
    touch(*(tmp_path / "split" / f"big-0000{part}-of-00002.gguf" for part in (1, 2)))
    assert find_model("split") == str(tmp_path / "split" / "big-00001-of-00002.gguf")
    assert model_name("split/big-00001-of-00002.gguf") == "big"
    touch(tmp_path / "split" / "other.gguf")
    with pytest.raises(ModelFileError, match=r"holds 2 GGUF models \(big-00001-of-00002.gguf, other.gguf\): name one"):
        find_model("split")


@pytest.mark.parametrize(
    ("architecture", "kind"), [("clip", "mmproj"), ("clip", ""), ("llama", "imatrix"), ("llama", "adapter")]
)
def test_what_belongs_to_a_model_may_lie_beside_it(tmp_path: Path, architecture: str, kind: str) -> None:
    touch(tmp_path / "m-Q4_0.gguf")
    for name in ("beside.gguf", "mmproj.gguf"):
        writer = gguf.GGUFWriter(tmp_path / name, architecture)
        if kind:
            writer.add_type(kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    assert local_model(tmp_path) == tmp_path / "m-Q4_0.gguf"


def test_what_can_not_be_a_path(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"x…: can't be a path \(File name too long\)"):
        find_model("x" * 5000)


def test_a_cache(cache: Path) -> None:
    folder = cached(cache, REVISION)
    expected = str(folder / "snapshots" / REVISION)
    assert find_model("owner/some-model") == find_model(str(folder)) == find_model(expected) == expected
    assert model_name("owner/some-model") == model_name(str(folder)) == model_name(expected) == "some-model"
    cached(cache, "b" * 40)
    with pytest.raises(ModelFileError, match="holds 2 snapshots and no refs/main"):
        find_model("owner/some-model")
    cached(cache, main="b" * 40)
    assert find_model("owner/some-model") == str(folder / "snapshots" / ("b" * 40))


def test_a_folder_that_is_named_as_a_model_is(tmp_path: Path, cache: Path) -> None:
    cached(cache, REVISION)
    touch(tmp_path / "owner" / "some-model" / "config.json")
    assert find_model("owner/some-model") == str(tmp_path / "owner" / "some-model")


def test_a_cache_that_is_not_whole(cache: Path) -> None:
    folder = cached(cache, main=REVISION)
    (folder / "snapshots").mkdir()
    with pytest.raises(ModelFileError, match="holds no snapshot: what was fetched is not whole"):
        find_model(str(folder))


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []

    def download(name: str, *, allow_patterns: list[str], tqdm_class: type) -> str:
        calls.append((name, allow_patterns))
        if name == "owner/none":
            raise OSError("no route to host.\nmore")
        touch(tmp_path / "fetched" / "config.json")
        return str(tmp_path / "fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_model("owner/new") == str(tmp_path / "fetched")
    assert calls == [("owner/new", PATTERNS)]
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in PATTERNS if pattern != "LICENSE*")
    with pytest.raises(ModelFileError, match=r"owner/none: is no file .* \(no route to host\): check the name"):
        find_model("owner/none")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelFileError, match="names on the hub need the package huggingface_hub"):
        find_model("owner/new")


def test_where_the_cache_is() -> None:
    assert hub_cache({"HF_HOME": "/a"}) == Path("/a/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/b"}) == Path("/b/huggingface/hub")
    assert hub_cache({}) == Path("~/.cache/huggingface/hub").expanduser()
