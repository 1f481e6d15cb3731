"""What a user chose: the backend and engine options that hold where nothing else is said. One JSON file per user."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfleet.backends.protocol import BackendUnavailable, HardwareBackend
from polyfleet.backends.registry import BackendRegistry
from polyfleet.process.config import ConfigError
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import OPTIONS, checked

VARIABLE = "POLYFLEET_BACKEND"


def choice_file() -> Path:
    """`$XDG_CONFIG_HOME/polyfleet/backend.json`, else below ~/.config."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "polyfleet" / "backend.json"


def check_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    """The same choice; raises ConfigError for an unknown key, a wrong type or an unknown backend."""
    for key in choice.keys() - {"backend", *OPTIONS}:
        raise ConfigError(f"{key}: is no option: choose from backend, {', '.join(OPTIONS)}")
    try:
        options = checked({key: value for key, value in choice.items() if key != "backend"})
    except FieldError as error:
        raise ConfigError(str(error)) from None
    backend = choice.get("backend", "auto")
    if backend != "auto" and backend not in BackendRegistry.names():
        raise ConfigError(
            f"there is no backend {backend!r}: choose auto or one of {', '.join(BackendRegistry.names())}"
        )
    return {**({"backend": backend} if "backend" in choice else {}), **options}


def read_choice(path: Path) -> dict[str, Any]:
    """A file with a choice, checked. Raises ConfigError."""
    try:
        loaded = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"the file {path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the file {path} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"the file {path} must hold one JSON object")
    try:
        return check_choice(loaded)
    except ConfigError as error:
        raise ConfigError(f"the file {path} can't be used: {error}") from error


def write_choice(path: Path, choice: Mapping[str, Any]) -> None:
    """Write atomically; makes the folder. Raises ConfigError, or OSError for the path.

    A link keeps its place and so does what is no file (/dev/stdout).
    """
    text = json.dumps(check_choice(choice), indent=2) + "\n"
    target = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file():
            path.write_text(text)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}.new")
        try:
            draft.write_text(text)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def user_choice() -> dict[str, Any]:
    """What the user chose before; empty when nothing. The environment variable overrides the backend."""
    chosen = read_choice(choice_file()) if choice_file().exists() else {}
    if variable := os.environ.get(VARIABLE, "").strip().lower():
        if chosen.get("backend", variable) != variable:
            chosen = {}  # options were made for another backend
        try:
            chosen = check_choice({**chosen, "backend": variable})
        except ConfigError as error:
            raise ConfigError(f"{error} ({chosen_by()})") from error
    return chosen


def chosen_by() -> str:
    """How the backend in use was chosen where it was not by `auto`, and for a choice on file how that is undone."""
    if os.environ.get(VARIABLE, "").strip():
        return f"it was chosen by {VARIABLE}"
    return "it was chosen with `polyfleet backends set`; `reset` forgets it"


def set_backend(name: str) -> HardwareBackend:
    """Remember a backend for this user; "auto" is remembered too. Raises BackendUnavailable with the reason."""
    backend = BackendRegistry.get(name)
    write_choice(choice_file(), {"backend": name.strip().lower()})
    return backend


def reset_backend() -> None:
    """Forget what was chosen. Raises OSError where the file can't be removed."""
    choice_file().unlink(missing_ok=True)


def get_backend(name: str = "auto") -> HardwareBackend:
    """The backend named; "auto" means the environment variable, else the user's choice, else the best that is here.

    Raises BackendUnavailable (with the reason) or ConfigError.
    """
    if name != "auto":
        return BackendRegistry.get(name)
    chosen = str(user_choice().get("backend", "auto"))
    try:
        return BackendRegistry.get(chosen)
    except BackendUnavailable as error:
        raise BackendUnavailable(f"{error} ({chosen_by()})") from error
