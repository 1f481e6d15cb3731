"""Which files of a Hugging Face folder are the model. No torch is imported here, and no weight is read."""

from pathlib import Path

from polyfleet.models.errors import ModelFileError
from polyfleet.models.fields import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_is_model(folder: Path) -> None:
    """Raise ModelFileError unless the folder is a whole model's."""
    if not (folder / "config.json").is_file():
        raise ModelFileError(f"{folder}: the folder has no config.json, so it is no model folder")
    if (folder / ADAPTER).is_file():
        raise ModelFileError(
            f"{folder}: holds an adapter ({ADAPTER}): serve the model that it adapts, and add it to that"
        )


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
    pickles = sorted(each.name for pattern in PICKLES for each in folder.glob(pattern))
    if pickles:
        raise ModelFileError(
            f"{folder}: the weights are in pickle files ({pickles[0]}), which could run code; use safetensors"
        )
    raise ModelFileError(f"{folder}: the folder has neither {SINGLE} nor {INDEX}")
