"""The front door of loading: a path to a LoadedModel."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from polyfleet.loading.folder.model import load_folder
from polyfleet.loading.gguf.model import load_gguf
from polyfleet.loading.glance import check_is_gguf
from polyfleet.loading.model import LoadedModel, ModelFileError
from polyfleet.loading.placing import Keep
from polyfleet.loading.progress import Progress, halves, silent
from polyfleet.loading.shapes import check_numbers
from polyfleet.loading.sources import find_model
from polyfleet.models.config import ModelConfig


def load_model(
    path: str | Path,
    progress: Progress | None = None,
    *,
    numbers: bool = True,
    keeping: Callable[[ModelConfig], Keep] | None = None,
) -> LoadedModel:
    """Load a GGUF file or a Hugging Face folder, or fetch `owner/name`; nothing in it is ever executed.

    `progress` is called with the share done, with 0 while it is fetched. Without `numbers` nobody has looked whether
    all weights are finite, and most of them are not read yet. With `keeping` the weights are what is kept of them,
    whose shapes nobody has looked at. Raises ModelFileError, whose message is one sentence.
    """
    told = progress or silent
    first, second = halves(told) if numbers else (told, silent)
    model = _load(Path(find_model(str(path), partial(told, 0.0))), first, keeping)
    if numbers:
        check_numbers(model.path, model.weights, second)
    told(1.0)
    return model


def _load(path: Path, progress: Progress, keeping: Callable[[ModelConfig], Keep] | None) -> LoadedModel:
    if path.is_file():
        check_is_gguf(path)
        return load_gguf(str(path), progress, keeping)
    if path.is_dir():
        return load_folder(str(path), progress, keeping)
    if not path.exists():
        raise ModelFileError(f"{path}: there is no such file or folder")
    raise ModelFileError(f"{path}: is neither a file nor a folder")
