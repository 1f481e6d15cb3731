"""The front door of loading: a path to a LoadedModel."""

from pathlib import Path

from polyfleet.loading.folder_model import load_folder
from polyfleet.loading.gguf_model import load_gguf
from polyfleet.loading.model import LoadedModel, ModelFileError
from polyfleet.loading.progress import Progress, silent


def load_model(path: str | Path, progress: Progress | None = None) -> LoadedModel:
    """Load a GGUF file or a Hugging Face folder; nothing in it is ever executed.

    `progress` is called with the share done. Raises ModelFileError, whose message is one sentence.
    """
    path = Path(path).expanduser()
    if path.is_file():
        return load_gguf(str(path), progress or silent)
    if path.is_dir():
        return load_folder(str(path), progress or silent)
    if not path.exists():
        raise ModelFileError(f"{path}: there is no such file or folder")
    raise ModelFileError(f"{path}: is neither a file nor a folder")
