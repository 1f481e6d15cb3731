"""Where a model lies that somebody names: a file, a folder of one of many kinds, or a name on Hugging Face's hub.

No torch is imported here, and no weight is read.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from polyfleet.loading.gguf.file import read_gguf
from polyfleet.models.errors import ModelFileError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # owner/name
CACHE_FOLDER = "models--"
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
PATTERNS = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "LICENSE*",
]  # of what is fetched: no code, no pickle
SHOWN_FILES = 4


def find_model(source: str, came: Callable[[], None] = lambda: None) -> str:
    """The file or folder of a model that is named by a path or, where there is none, by `owner/name`.

    A name is looked up in the hub's cache on this machine, then fetched: `came` is called as pieces come, one at a
    time but from other threads. Raises ModelFileError, one sentence.
    """
    if not is_hub_name(source):
        return str(local_model(Path(source).expanduser()).absolute())
    cached = _cached(source)
    return str(local_model(cached if _is_whole(cached) else Path(_fetched(source, came))).absolute())


def is_hub_name(source: str) -> bool:
    """Whether it is `owner/name` and no path of anything here. Raises ModelFileError for what can't be a path."""
    named = NAME.fullmatch(source) and not source.lower().endswith(".gguf")
    return bool(named) and not _exists(Path(source).expanduser())


def check_is_here(source: str) -> None:
    """Raise ModelFileError for what is neither a file nor a folder here, nor fetched from the hub already."""
    if is_hub_name(source):
        if not _is_whole(_cached(source)):
            raise ModelFileError(f"{source}: was not fetched from the hub yet: deploying it does that")
    elif not _exists(Path(source).expanduser()):
        raise ModelFileError(f"{source}: there is no such file or folder")


def local_model(path: Path) -> Path:
    """The model file or folder that a path means: itself, but for a cache's folder, and one that holds a single GGUF.

    What belongs to a GGUF model (a projector, an importance matrix) may lie beside it. Raises ModelFileError.
    """
    if not _exists(path) or not path.is_dir():
        return path
    if (path / "snapshots").is_dir():
        return local_model(_snapshot(path))
    files = sorted(path.glob("*.gguf"))
    if (path / "config.json").is_file() and (not files or any(path.glob("*.safetensors"))):
        return path
    models = [file for file in files if _is_first(file)]
    if len(models) > 1:
        models = [file for file in models if _is_model(file)] or models
    if len(models) == 1:
        return models[0]
    if models:
        names = ", ".join(file.name for file in models[:SHOWN_FILES]) + (" …" if len(models) > SHOWN_FILES else "")
        raise ModelFileError(f"{path}: holds {len(models)} GGUF models ({names}): name one of them")
    return path


def model_name(source: str) -> str:
    """What a model is called where nobody says: by its path without its folders, or its name without its owner."""
    path = Path(source).expanduser()
    if not path.exists() and NAME.fullmatch(source):
        return source.rpartition("/")[2]
    for each in (path, *path.parents):
        if each.name.startswith(CACHE_FOLDER):
            return each.name.rpartition("--")[2]
    name = path.absolute().name
    shard = SHARD.fullmatch(name)
    return shard[1] if shard else name.removesuffix(".gguf") if path.is_file() else name


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Where huggingface_hub keeps what it fetched."""
    if named := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(home).expanduser() / "hub"


def _cached(name: str) -> Path:
    """The folder that the hub's cache keeps of a name, which is not there where it was never fetched."""
    return hub_cache() / (CACHE_FOLDER + name.replace("/", "--"))


def _is_whole(cached: Path) -> bool:
    """Whether what the hub's cache keeps of a model has all its weights: a fetch that broke off leaves some out."""
    if not any(cached.glob("snapshots/*")) or any((cached / "blobs").glob("*.incomplete")):
        return False
    model = local_model(cached)
    index = model / "model.safetensors.index.json"
    if model.is_file():
        return True
    try:
        names = json.loads(index.read_bytes())["weight_map"].values() if index.is_file() else ["model.safetensors"]
        return all((model / name).is_file() for name in names)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return False


def _snapshot(path: Path) -> Path:
    """Of a cache's folder: the revision that its branch main is at, or the only one."""
    found = sorted(each for each in (path / "snapshots").iterdir() if each.is_dir())
    main = path / "refs" / "main"
    if main.is_file() and (named := path / "snapshots" / main.read_text(encoding="utf-8").strip()) in found:
        return named
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelFileError(f"{path}: holds no snapshot: what was fetched is not whole")
    names = ", ".join(each.name for each in found[:SHOWN_FILES])
    raise ModelFileError(f"{path}: holds {len(found)} snapshots and no refs/main ({names}): name one of them")


def _exists(path: Path) -> bool:
    """Whether there is something; raises ModelFileError for what can't be a path."""
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{str(path)[:80]}…: can't be a path ({getattr(error, 'strerror', error)})") from None


def _is_model(file: Path) -> bool:
    """Whether its header says that it is one, and no projector, matrix or adapter; so does one that can't be read."""
    try:
        metadata = read_gguf(str(file)).metadata
    except ModelFileError:
        return True
    return metadata.get("general.type", "model") == "model" and metadata.get("general.architecture") != "clip"


def _is_first(file: Path) -> bool:
    """Whether it is a whole model or the first file of a split one."""
    shard = SHARD.fullmatch(file.name)
    return shard is None or int(shard[2]) == 1


def _fetched(name: str, came: Callable[[], None]) -> str:
    """The folder that holds the model of that name, from the hub."""
    missing = f"{name}: is no file or folder here"
    try:
        from huggingface_hub import snapshot_download

        from polyfleet.loading.fetching import bar_that_tells, reason_of
    except ImportError:
        raise ModelFileError(f"{missing}, and names on the hub need the package huggingface_hub") from None
    try:
        folder: str = snapshot_download(name, allow_patterns=PATTERNS, tqdm_class=bar_that_tells(came))
    except Exception as error:  # of many kinds: of the network, of the hub, of the disk
        raise ModelFileError(
            f"{missing}, and it can't be fetched from the hub ({reason_of(error)}): check the name and the network, or "
            "fetch it where there is one and name its folder"
        ) from None
    return folder
