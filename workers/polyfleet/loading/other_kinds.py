"""What a folder holds that is no model which can be read: told by its files' names, of which none is opened."""

from collections.abc import Iterable, Mapping
from pathlib import Path

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
OTHERS: Mapping[str, str] = {  # by how names end
    ".onnx": "ONNX",
    ".xml": "OpenVINO's format",
    ".h5": "TensorFlow's format",
    ".msgpack": "Flax' format",
    ".ot": "Rust's format",
    ".npz": "NumPy's format",
    ".nemo": "NeMo's format",
    ".engine": "TensorRT's format",
    ".pte": "ExecuTorch's format",
    **dict.fromkeys((".tflite", ".litertlm", ".task"), "LiteRT's format"),
    **dict.fromkeys((".mlpackage", ".mlmodelc"), "Core ML's format"),
}
PIPELINE = "model_index.json"
READ = "a model is a folder with config.json and safetensors files, or a GGUF file"


def instead(folder: Path) -> str:
    """What the folder holds instead of a model, as the rest of a sentence; "" where its files tell nothing."""
    if (folder / PIPELINE).is_file():
        return f"holds a pipeline of several models ({PIPELINE}), which makes no text: {READ}"
    files = sorted(folder.iterdir())
    inner = [each for file in files if file.is_dir() for each in sorted(file.iterdir())]
    return _weights(files) or _model_inside(folder, inner) or _weights(inner)


def _weights(files: Iterable[Path]) -> str:
    pickle = ""
    for file in files:
        if kind := OTHERS.get(file.suffix.lower()):
            return f"the weights are in {kind} ({file.name}), which is not read: {READ}"
        pickle = pickle or (file.name if file.suffix.lower() in PICKLES else "")
    return f"the weights are in pickle files ({pickle}), which could run code; use safetensors" if pickle else ""


def _model_inside(folder: Path, inner: Iterable[Path]) -> str:
    if (folder / "modules.json").is_file():
        return ""  # which tells what else is computed
    for each in inner:
        found = each.parent if each.name == "config.json" else each if each.suffix == ".gguf" else None
        if found:
            return f"is no model folder, but {found.relative_to(folder)} in it is a model: name that"
    return ""
