"""Whether a path can be a model, told by its headers, without torch: before anything is started for it.

Architecture, configuration, quantisation, files, and tensors' types and sizes are looked at; what passes here may
still be refused by `load_model`, which reads all numbers and the tokenizer.
"""

from pathlib import Path

from polyfleet.loading.folder.config import read_config
from polyfleet.loading.folder.files import check_is_model, read_headers, weight_files
from polyfleet.loading.gguf import config as gguf_config
from polyfleet.loading.gguf.metadata import check_model_metadata
from polyfleet.loading.gguf.split import read_files
from polyfleet.loading.headers import check_config, check_entries, check_tensors, read_beginning
from polyfleet.loading.sources import local_model
from polyfleet.models.config import ModelConfig
from polyfleet.models.errors import ModelFileError
from polyfleet.models.fields import Fields

GGUF_MAGIC = b"GGUF"
KINDS = "a model is a GGUF file or a Hugging Face folder"


def glance(path: str | Path, context_length: int = 0) -> None:
    """Raise ModelFileError for what is no model of a known architecture, all of whose settings are understood.

    So it does for one whose own context is shorter than `context_length`.
    """
    path = local_model(Path(path).expanduser())
    try:
        if path.is_dir():
            config = _glance_at_folder(path)
        elif path.is_file():
            check_is_gguf(path)
            config = _glance_at_gguf(path)
        elif path.exists():
            raise ModelFileError(f"{path}: is neither a file nor a folder")
        else:
            raise ModelFileError(f"{path}: there is no such file or folder")
    except (OSError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path}: can't be read ({getattr(error, 'strerror', None) or error})") from None
    if context_length > config.context_length:
        own = f"its context has {config.context_length} tokens"
        raise ModelFileError(f"{path}: {own}, which context_length can't exceed: {context_length} were asked for")


def check_is_gguf(path: Path) -> None:
    """Raise ModelFileError for a file of another kind, which is named where it is known."""
    if read_beginning(path)[: len(GGUF_MAGIC)] in GGUF_MAGIC:  # one that ends within it is truncated
        return
    if path.suffix in (".safetensors", ".json"):
        raise ModelFileError(f"{path}: is one file of a Hugging Face folder; name the folder")
    raise ModelFileError(f"{path}: is not a GGUF file (its first bytes are not 'GGUF'); {KINDS}")


def _glance_at_folder(path: Path) -> ModelConfig:
    check_is_model(path)
    entries = read_headers(path, weight_files(path))
    architecture, config, scheme = read_config(path)
    check_entries(str(path), config, architecture.folder_names, scheme, entries)
    return config


def _glance_at_gguf(path: Path) -> ModelConfig:
    header = read_files(str(path))
    fields = Fields(str(path), header.metadata)
    architecture, config = gguf_config.read_config(header, fields)
    check_config(str(path), config, len(header.tensors))
    check_model_metadata(fields, config)
    check_tensors(str(path), config, architecture.gguf_names, header.sides)
    return config
