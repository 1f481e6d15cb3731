"""Which files of a Hugging Face folder are the model. No torch is imported here, and no weight is read."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from polyfleet.loading.headers import Entry, read_header
from polyfleet.loading.other_kinds import instead
from polyfleet.models.errors import ModelFileError
from polyfleet.models.fields import Fields, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
READ = (".json", ".jinja", ".safetensors")  # what of a folder is looked at
PART = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")


def check_is_model(folder: Path) -> None:
    """Raise ModelFileError unless the folder is a whole model's."""
    if (folder / ADAPTER).is_file():
        raise ModelFileError(
            f"{folder}: holds an adapter ({ADAPTER}): serve the model that it adapts, and add it to that"
        )
    for file in sorted(folder.iterdir()):  # one that is gone would be taken for one that never was there
        if file.suffix in READ and file.is_symlink() and not file.exists():
            raise ModelFileError(f"{file}: is a link to a file that is gone: fetch the model again")
    if not (folder / "config.json").is_file():
        raise _nothing(folder, "the folder has no config.json, so it is no model folder")


def check_is_adapter(folder: Path) -> None:
    """Raise ModelFileError unless the folder is an adapter's."""
    if not folder.exists():
        raise ModelFileError(f"{folder}: there is no such folder")
    if not (folder / ADAPTER).is_file():
        raise ModelFileError(f"{folder}: the folder has no {ADAPTER}, so it is no adapter")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the folder, in the index's order if it has one."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        names = list(dict.fromkeys(index.section("weight_map").values.values()))
        for name in names:
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise index.error(f"weight_map names {name!r}, which is no safetensors file of this folder")
            if not (folder / name).is_file():
                raise index.error(f"the file {name} of weight_map is missing")
        return [folder / name for name in names]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if found := sorted(folder.glob("*.safetensors")):
        return _without_index(folder, found)
    raise _nothing(folder, f"the folder has neither {SINGLE} nor {INDEX}")


def read_headers(folder: Path, files: Iterable[Path]) -> dict[str, Entry]:
    """Of all the folder's files, as `read_header` of each; raises ModelFileError where its index says otherwise."""
    entries: dict[str, Entry] = {}
    for file in files:
        for name, entry in read_header(file).items():
            if name in entries:
                raise ModelFileError(f"{file}: tensor {name!r} stands in {entries[name].file.name} too")
            entries[name] = entry
    if (folder / INDEX).is_file():
        _check_index(read_json(folder / INDEX), entries)
    return entries


def _without_index(folder: Path, found: list[Path]) -> list[Path]:
    """A single file, or all parts of one model."""
    for each in found:
        if not each.is_file():  # reading a pipe would wait for ever
            raise ModelFileError(f"{each}: is no file")
    parts = [part for each in found if (part := PART.fullmatch(each.name))]
    if len(parts) == len(found) and len({(part[1], part[3]) for part in parts}) == 1:
        stem, _, count = parts[0].groups()
        names = [f"{stem}-{number:0{len(count)}}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
        missing = next((name for name in names if not (folder / name).is_file()), "")
        if not missing:
            return found
        raise ModelFileError(f"{folder}: the file {missing} of {int(count)} is missing, and so is {INDEX}")
    if len(found) == 1:
        return found
    shown = ", ".join(each.name for each in found[:3])
    raise ModelFileError(f"{folder}: holds {len(found)} safetensors files ({shown}) and no {INDEX} that tells of them")


def _check_index(index: Fields, entries: Mapping[str, Entry]) -> None:
    """Raise ModelFileError unless each tensor lies where `weight_map` says; those that it leaves out are read, too."""
    for name, file in index.section("weight_map").values.items():
        if name not in entries or entries[name].file.name != file:
            raise index.error(f"weight_map says that tensor {name!r} lies in {file}, which does not hold it")


def _nothing(folder: Path, otherwise: str) -> ModelFileError:
    return ModelFileError(f"{folder}: {instead(folder) or otherwise}")
