"""fetch_model.py, which the init container runs: against a hub and a bucket on loopback."""

import hashlib
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.helm_chart import CHART

SCRIPT = CHART / "files" / "fetch_model.py"
WEIGHTS = bytes(range(256)) * 4096
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "run.py": b"import os", "pytorch_model.bin": b"\x80"}


class Site(ThreadingHTTPServer):
    """A hub with one repository a/b, whose weights lie on another host, and a bucket with the same files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        self.announced = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.cut_after = 0  # bytes of the next weights; 0: all
        self.busy = 0  # answers 503 so many times

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def elsewhere(self) -> str:
        return f"http://localhost:{self.server_port}"  # another host's name


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site, path = self.server, self.path.partition("?")[0]
        site.requests.append((self.path, dict(self.headers)))
        if site.busy:
            site.busy -= 1
            self._send(503, b"")
        elif path.startswith("/api/models/a/b/revision/"):
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data),
                    "lfs": {"sha256": site.announced[name]} if b"\xff" in data else None,
                }
                for name, data in site.files.items()
            ]
            self._send(200, json.dumps({"sha": "c0ffee", "siblings": siblings}).encode())
        elif path == "/a/b/resolve/c0ffee/model.safetensors":
            self._send(302, b"", {"Location": f"{site.elsewhere}/cdn/model.safetensors"})
        elif path == "/bucket":
            items = "".join(
                f"<Contents><Key>m/{n}</Key><Size>{len(d)}</Size></Contents>" for n, d in site.files.items()
            )
            listing = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{items}</ListBucketResult>'
            self._send(200, listing.encode())
        elif (name := path.rpartition("/")[2]) in site.files:
            self._send_file(site.files[name])
        else:
            self._send(404, b"")

    def _send_file(self, data: bytes) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        body = data[start:]
        cut, self.server.cut_after = self.server.cut_after, 0
        self._send(206 if start else 200, body[:cut] if cut else body, {"Content-Length": str(len(body))})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fetch_model", made)  # dataclasses look their module up
    spec.loader.exec_module(made)
    monkeypatch.setattr(made, "LONGEST_PAUSE", 0)
    return made


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fetch_model.py", *map(str, arguments)])
    return int(module.main())


def test_a_folder_comes_whole_and_without_code(
    site: Site, module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("hf_secret\n")
    into = tmp_path / "a--b@main"
    arguments = ("hub", "a/b", f"--into={into}", f"--endpoint={site.address}", f"--credentials={tmp_path}")
    assert run(module, monkeypatch, *arguments) == 0
    assert {path.name for path in into.iterdir() if path.suffix and path.name[0] != "."} == {
        "config.json",
        "model.safetensors",
    }
    assert (into / "model.safetensors").read_bytes() == WEIGHTS
    sent = {path: headers.get("Authorization") for path, headers in site.requests}
    assert sent["/a/b/resolve/c0ffee/config.json"] == "Bearer hf_secret"
    assert sent["/cdn/model.safetensors"] is None  # another host gets no credentials
    asked = len(site.requests)
    assert run(module, monkeypatch, *arguments) == 0
    assert len(site.requests) == asked  # whole: nothing is asked


def test_what_was_cut_off_is_continued(
    site: Site, module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site.cut_after = 1000
    site.files = {"model.safetensors": WEIGHTS}
    assert run(module, monkeypatch, "hub", "a/b", f"--into={tmp_path}", f"--endpoint={site.address}") == 0
    ranges = [headers.get("Range") for path, headers in site.requests if path.startswith("/cdn/")]
    assert ranges == [None, "bytes=1000-"]
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_busy_hub_is_asked_again(
    site: Site, module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site.busy = 2
    assert run(module, monkeypatch, "hub", "a/b", f"--into={tmp_path}", f"--endpoint={site.address}") == 0


def test_other_content_than_announced_is_thrown_away(
    site: Site, module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.announced["model.safetensors"] = "0" * 64
    assert run(module, monkeypatch, "hub", "a/b", f"--into={tmp_path}", f"--endpoint={site.address}") == 1
    assert "model.safetensors arrived with other content than announced" in capsys.readouterr().err
    assert not list(tmp_path.glob("model.safetensors*"))
    assert not (tmp_path / module.WHOLE).exists()


@pytest.mark.parametrize(
    ("files", "arguments", "sentence"),
    [
        ({"../evil.json": b"", "m.gguf": b"x"}, ["--include=*"], "leads out of the model's folder"),
        ({"m.gguf": b"x"}, [], "No weights match *.safetensors"),
        ({"run.py": b"x"}, ["--include=*.py"], "No weights match *.py"),
    ],
)
def test_refused(
    site: Site,
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, bytes],
    arguments: list[str],
    sentence: str,
) -> None:
    site.files = files
    assert (
        run(module, monkeypatch, "hub", "a/b", f"--into={tmp_path / 'm'}", f"--endpoint={site.address}", *arguments)
        == 1
    )
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.gguf"))


def test_a_wrong_repository_ends_in_one_sentence(site: Site, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "hub", "no/where", f"--into={tmp_path}", f"--endpoint={site.address}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"{site.address}/api/models/no/where/revision/main?blobs=true answers 404 Not Found.\n"


def test_one_file_of_a_repository_of_many(
    site: Site, module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site.files = {"m-Q4_0.gguf": b"four", "m-Q8_0.gguf": b"eight"}
    arguments = ("hub", "a/b", f"--into={tmp_path}", f"--endpoint={site.address}")
    assert run(module, monkeypatch, *arguments, "--include=*Q4*") == 0
    assert [path.name for path in tmp_path.glob("*.gguf")] == ["m-Q4_0.gguf"]
    assert run(module, monkeypatch, *arguments, "--include=*Q8*") == 0  # another wish is not whole yet
    assert len(list(tmp_path.glob("*.gguf"))) == 2


def test_a_prefix_of_a_bucket(site: Site, module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "access-key-id").write_text("id")
    (tmp_path / "secret-access-key").write_text("secret")
    into = tmp_path / "m"
    arguments = ("s3", "s3://bucket/m", f"--into={into}", f"--endpoint={site.address}", f"--credentials={tmp_path}")
    assert run(module, monkeypatch, *arguments) == 0
    assert (into / "model.safetensors").read_bytes() == WEIGHTS
    assert all(headers["Authorization"].startswith("AWS4-HMAC-SHA256 ") for _, headers in site.requests)
    assert "secret" not in str(site.requests)


def test_signatures_are_those_of_the_published_example(module: ModuleType) -> None:
    """The example of a list request in Amazon's "Signature Calculations for the Authorization Header"."""
    headers = module.sign(
        "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J",
        "us-east-1",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        datetime(2013, 5, 24, tzinfo=timezone.utc),
    )
    signature = headers["Authorization"].rpartition("=")[2]
    assert signature == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
