"""A model in several GGUF files (`NAME-00001-of-00003.gguf` …), as `llama-gguf-split` writes them; or in one."""

import re
from dataclasses import replace
from pathlib import Path

from polyfleet.loading.gguf.file import GgufFile, TensorInfo, read_gguf
from polyfleet.models.errors import ModelFileError
from polyfleet.models.fields import Fields

NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def read_files(path: str) -> GgufFile:
    """The header of the file, or of all files of which it is one: metadata of the first, tensors of all.

    Raises ModelFileError unless headers are sound, all files are there and each is whole.
    """
    file = read_gguf(path)
    count = _count(file, "split.count")
    if count < 2:
        _check_name(path)
        return file
    files = [file if str(each) == path else read_gguf(str(each)) for each in _siblings(path, count)]
    tensors: dict[str, TensorInfo] = {}
    for number, each in enumerate(files):
        stated = _count(each, "split.no"), _count(each, "split.count")
        if stated != (number, count):
            raise ModelFileError(f"{each.path}: states that it is file {stated[0] + 1} of {stated[1]}")
        if twice := sorted(tensors.keys() & each.tensors.keys()):
            raise ModelFileError(f"{each.path}: tensor {twice[0]!r} stands in two files")
        tensors.update(each.tensors)
    total = _count(files[0], "split.tensors.count")
    if total not in (0, len(tensors)):
        raise ModelFileError(f"{files[0].path}: states {total} tensors, the {count} files hold {len(tensors)}")
    return replace(files[0], tensors=tensors)


def _count(file: GgufFile, key: str) -> int:
    return Fields(file.path, file.metadata).count(key, 0, minimum=0)


def _check_name(path: str) -> None:
    """Raise ModelFileError for one that is named as a part, which would hold some of the tensors."""
    match = NAME.fullmatch(Path(path).name)
    if match and int(match[3]) > 1:
        stated = "but states no split.count: rename it if it is whole, else split the model by llama-gguf-split"
        raise ModelFileError(f"{path}: is named as one of {int(match[3])} files, {stated}")


def _siblings(path: str, count: int) -> list[Path]:
    match = NAME.fullmatch(Path(path).name)
    if match is None or int(match[3]) != count:
        name = f"NAME-00001-of-{count:05}.gguf"
        raise ModelFileError(f"{path}: is one of {count} files, which must have names such as {name}")
    files = [Path(path).with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(1, count + 1)]
    for file in files:
        if not file.is_file():
            raise ModelFileError(f"{path}: is one of {count} files, of which {file.name} is missing")
    return files
