"""What a model's files say of themselves beside how it computes: its licence, and the method that quantised it."""

import re
from dataclasses import dataclass
from pathlib import Path

from polyfleet.loading.gguf.split import read_files
from polyfleet.models.fields import read_json

LONGEST = 80  # of a first line that names a licence


@dataclass(frozen=True, slots=True)
class Labels:
    """Each as the files state it; empty: they don't."""

    licence: str = ""
    quantisation: str = ""


def read_labels(path: str) -> Labels:
    """Of a GGUF file, or of a folder: its model card's head, else the first line of its licence."""
    folder = Path(path)
    if not folder.is_dir():
        stated = read_files(path).metadata.get("general.license")
        return Labels(stated if isinstance(stated, str) else "")
    method = read_json(folder / "config.json").values.get("quantization_config")
    named = method.get("quant_method") if isinstance(method, dict) else None
    return Labels(_licence(folder), named if isinstance(named, str) else "")


def _licence(folder: Path) -> str:
    card = _text(folder / "README.md")
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    stated = dict(re.findall(r"^(license(?:_name)?): *['\"]?([\w.+-]+)", head[1] if head else "", re.MULTILINE))
    if name := stated.get("license_name") if stated.get("license") == "other" else stated.get("license"):
        return str(name)
    files = sorted(each for each in folder.iterdir() if each.name.upper().startswith("LICENSE") and each.is_file())
    lines = (line.strip() for file in files for line in _text(file).splitlines())
    return next((line[:LONGEST] for line in lines if line), "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[: 1 << 16] if path.is_file() else ""
    except OSError:
        return ""
