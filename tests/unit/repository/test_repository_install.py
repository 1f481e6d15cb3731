"""tools/install.py: pip's settings are heeded by uv, or pip installs."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools import install

LISTING = r"""
:env:.find-links='/own/wheels /more'
global.extra-index-url='https://a.example/simple\nhttps://me:word@b.example/simple'
global.find-links='/wheels'
global.index-url='https://index.example/simple'
install.constraint='/etc/limits.txt'
install.disable-pip-version-check='1'
list.format='json'
"""


def test_the_nearest_setting_holds_and_those_of_other_commands_do_not() -> None:
    assert install.settings_of(LISTING) == {
        "find-links": "/own/wheels /more",
        "extra-index-url": "https://a.example/simple\nhttps://me:word@b.example/simple",
        "index-url": "https://index.example/simple",
        "constraint": "/etc/limits.txt",
        "disable-pip-version-check": "1",
    }


def test_uv_is_told_what_pip_was_told() -> None:
    settings = install.settings_of(LISTING)
    assert install.unknown_to_uv(settings) == []
    assert install.uv_variables(settings, {"PATH": "/bin"}) == {
        "PATH": "/bin",
        "UV_BUILD_CONSTRAINT": "requirements.lock",
        "UV_CONSTRAINT": "requirements.lock /etc/limits.txt",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_FIND_LINKS": "/own/wheels,/more",
        "UV_INDEX": "https://a.example/simple https://me:word@b.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_SYSTEM_CERTS": "true",
    }


def test_what_uv_itself_was_told_holds() -> None:
    own = {"UV_INDEX_STRATEGY": "first-index", "UV_DEFAULT_INDEX": "https://own.example", "UV_CONSTRAINT": "mine.txt"}
    found = install.uv_variables({"index-url": "https://index.example"}, own)
    assert found == {**found, **own, "UV_CONSTRAINT": "requirements.lock mine.txt"}


class Calls:
    """Stands in for `subprocess`: remembers what is run, and gives these exit codes in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, listing: str | None, *codes: int) -> None:
        """Without a listing the Python beneath has no pip."""
        self.made: list[list[str]] = []
        self._listing, self._codes = listing, iter(codes)
        monkeypatch.setattr(subprocess, "run", self._run)
        monkeypatch.setattr(subprocess, "call", self._call)

    def _run(self, command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
        if self._listing is None:
            if "--python" in command:
                raise subprocess.CalledProcessError(1, command)
            self._listing = ""
        return subprocess.CompletedProcess(command, 0, self._listing)

    def _call(self, command: Sequence[str], **_: object) -> int:
        self.made.append([Path(command[0]).name, *command[1:]])
        return next(self._codes)

    @property
    def tools(self) -> list[str]:
        return [f"{each[2]} beneath" if "--python" in each and each[2] == "pip" else each[2] for each in self.made]


@pytest.mark.parametrize(
    ("listing", "has_uv", "codes", "tools", "said"),
    [
        ("", True, (0,), ["uv"], ""),
        ("", False, (0, 0), ["pip beneath", "uv"], ""),
        (None, False, (0, 0), ["pip", "uv"], ""),
        ("", False, (1, 0), ["pip beneath", "pip beneath"], "uv can't be had (see above): pip installs.\n"),
        ("", True, (2, 0), ["uv", "pip"], "uv failed (see above): pip tries.\n"),
        (
            "global.no-binary='numpy'",
            True,
            (0,),
            ["pip"],
            "pip installs, since uv knows nothing like pip's no-binary.\n",
        ),
    ],
)
def test_pip_installs_where_uv_can_not(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    listing: str | None,
    has_uv: bool,
    codes: tuple[int, ...],
    tools: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(install, "find_spec", lambda _: has_uv or None)  # and pip likewise
    calls = Calls(monkeypatch, listing, *codes)
    assert install.installs(["--editable", ".[serve]"])
    assert (calls.tools, capsys.readouterr().out) == (tools, said)
    assert calls.made[-1][-2:] == ["--editable", ".[serve]"]
    assert ("pip" in calls.made[-1][4:]) == (not has_uv and listing is not None)  # where pip is missing it comes along


@pytest.mark.parametrize("terminal", [False, True])
def test_downloads_are_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr(install, "find_spec", lambda _: True)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    calls = Calls(monkeypatch, "", 1, 1)
    assert not install.installs(["click"])
    assert ["--quiet" in each for each in calls.made] == [not terminal] * 2
