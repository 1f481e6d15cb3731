"""A model by its name on the hub: fetched by who loads it, once; and without a network a sentence says what to do.

Each reads in a process of its own: huggingface_hub looks at its environment when it is imported.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fake_hub import GATED, fake_hub
from tests.support.http_server import serve_http
from tests.support.ports import free_addresses
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.loading.load import load_model
from polyfleet.loading.sources import check_is_here
from polyfleet.models.errors import ModelFileError

NAME = "owner/tiny-model"
LOADS = """
import sys
from polyfleet.loading.load import load_model
from polyfleet.loading.sources import check_is_here
from polyfleet.models.errors import ModelFileError
for name in sys.argv[1:]:
    try:
        check_is_here(name)
        print("here")
    except ModelFileError as error:
        print(error)
    told = []
    try:
        model = load_model(name, told.append)
        came = told.index(next(filter(None, told)))  # times that it was told before anything was read
        print(model.path, "came in pieces" if came else "was there")
    except ModelFileError as error:
        print(error)
"""


def told(home: Path, endpoint: str, *names: str) -> list[str]:
    """Of each name: whether it is here already, and then where it was loaded from; or why not."""
    environ = {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run([sys.executable, "-c", LOADS, *names], env=environ, capture_output=True, text=True, cwd=home)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("index", ["", "{", "[]", '{"weight_map": 1}', '{"weight_map": [[]]}', "[" * 100_000])
def test_a_cache_whose_index_says_nothing_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--owner--tiny-model" / "snapshots" / "one"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFileError, match="was not fetched from the hub yet"):
        check_is_here(NAME)


def test_a_name_is_fetched_once_and_then_here(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TinyShape())
    (folder / "modeling.py").write_text("raise SystemExit", encoding="utf-8")  # never fetched
    home = tmp_path / "home"
    home.mkdir()
    snapshots = home / "hub" / "models--owner--tiny-model" / "snapshots"
    with serve_http(fake_hub({NAME: folder})) as endpoint:
        first = told(home, endpoint, NAME, "owner/none", "owner/none.gguf", GATED)
    assert "can't be fetched from the hub (it is gated: accept its terms there and set HF_TOKEN)" in first[7]
    (snapshot,) = snapshots.iterdir()
    assert first[:2] == [
        f"{NAME}: was not fetched from the hub yet: deploying it does that",
        f"{snapshot} came in pieces",
    ]
    assert first[3].startswith(
        "owner/none: is no file or folder here, and it can't be fetched from the hub (there is no such model"
    )
    assert first[4] == "owner/none.gguf: there is no such file or folder"
    assert {path.name for path in snapshot.iterdir()} == {path.name for path in folder.iterdir()} - {"modeling.py"}
    assert load_model(snapshot).weights.keys() == load_model(folder).weights.keys()
    (snapshot / "model.safetensors").unlink()  # as a fetch leaves it that broke off
    with serve_http(fake_hub({NAME: folder})) as endpoint:
        again = told(home, endpoint, NAME)
    assert again == [first[0], f"{snapshot} came in pieces"]
    (gone,) = free_addresses(1)
    offline = told(home, f"http://{gone}", NAME, "owner/other")
    assert offline[:2] == ["here", f"{snapshot} was there"]
    assert offline[3].startswith("owner/other: is no file or folder here, and it can't be fetched from the hub (")
    assert offline[3].endswith("check the name and the network, or fetch it where there is one and name its folder")
