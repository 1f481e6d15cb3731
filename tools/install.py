"""`install.py WORDS…` is `pip install WORDS…` within requirements.lock, into the environment of this Python.

uv does it, at a fifth of pip's cost, where it can be had and all of pip's settings have their like in uv; else, or
where uv fails, pip itself does. Runs on nothing but that Python. An environment begins
without pip, since bringing it by `ensurepip` costs more than uv's whole work: pip of the Python beneath puts uv there.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = "requirements.lock"
PIP = [sys.executable, "-m", "pip"]
PYTHON_BENEATH = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
PIP_BENEATH = [PYTHON_BENEATH, "-m", "pip", "--python", sys.executable]
UV = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
VARIABLES = {  # uv's, of the same meaning as pip's settings
    "build-constraint": "UV_BUILD_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "constraint": "UV_CONSTRAINT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "no-cache-dir": "UV_NO_CACHE",
    "no-index": "UV_NO_INDEX",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}
SEPARATORS = {"UV_FIND_LINKS": ","}  # of words; else a space
# Settings of how pip works or talks, not of what it installs.
OWN = {"break-system-packages", "cache-dir", "disable-pip-version-check", "no-color", "no-input", "progress-bar"}
OWN |= {"no-python-version-warning", "no-warn-script-location", "quiet", "require-virtualenv", "retries"}
OWN |= {"root-user-action", "verbose"}
SECTIONS = ("global", "install", ":env:")  # the later one holds


def settings_of(listing: str) -> dict[str, str]:
    """What holds for `pip install`, out of the lines that `pip config list` prints."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found and value:
            found[section][key] = str(ast.literal_eval(value))
    return {key: value for section in SECTIONS for key, value in found[section].items()}


def unknown_to_uv(settings: Iterable[str]) -> list[str]:
    """The settings that only pip heeds."""
    return sorted(set(settings) - set(VARIABLES) - OWN)


def uv_variables(settings: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The environment `own` with uv's variables for pip's settings, but for those that are set; the lock is added.

    Of all indexes together the best version counts, as for pip.
    """
    meant = {VARIABLES[key]: value for key, value in settings.items() if key in VARIABLES}
    found = {name: SEPARATORS.get(name, " ").join(value.split()) for name, value in meant.items()}
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "true", **found, **own}
    for name in ("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT"):
        found[name] = f"{LOCK} {found.get(name, '')}".strip()
    return found


def pip_and_its_settings() -> tuple[list[str], dict[str, str]]:
    """The pip to be used, as the beginning of a command, and what holds for its `install`."""
    pip = PIP if find_spec("pip") else PIP_BENEATH
    try:
        listing = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # that Python has no pip, or one that knows no `--python`
        subprocess.run([sys.executable, "-m", "ensurepip"], stdout=subprocess.DEVNULL, check=True)
        pip = PIP
        listing = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
    return pip, settings_of(listing)


def installs_by_uv(words: list[str], pip: list[str], settings: Mapping[str, str]) -> bool:
    """Whether uv could be had, and has installed it, and pip beside where it is missing."""
    if unknown := unknown_to_uv(settings):
        print(f"pip installs, since uv knows nothing like pip's {', '.join(unknown)}.")
        return False
    if find_spec("uv") is None and not installs_by_pip(["uv"], pip):
        print("uv can't be had (see above): pip installs.")
        return False
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    again = ["--reinstall-package", "polyfleet"] if "--editable" in words else []  # its sources may have changed
    beside = ["pip"] if pip is PIP_BENEATH else []
    if subprocess.call([*UV, *quiet, *again, *beside, *words], env=uv_variables(settings, os.environ)) == 0:
        return True
    print("uv failed (see above): pip tries.")
    return False


def installs_by_pip(words: list[str], pip: list[str]) -> bool:
    """Whether pip has installed it."""
    quiet = [] if sys.stdout.isatty() else ["--quiet", "--quiet", "--progress-bar", "off"]
    variables = {"PIP_CONSTRAINT": LOCK, "PIP_BUILD_CONSTRAINT": LOCK}  # it reads one or the other, by its version
    variables |= {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.call([*pip, "install", "--no-compile", *quiet, *words], env={**os.environ, **variables}) == 0


def installs(words: list[str]) -> bool:
    """Whether one of them has installed it."""
    pip, settings = pip_and_its_settings()
    if installs_by_uv(words, pip, settings):
        return True
    return installs_by_pip(["pip", *words] if pip is PIP_BENEATH else words, pip)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(not installs(sys.argv[1:]))
