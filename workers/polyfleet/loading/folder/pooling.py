"""How a folder's own files, as sentence-transformers writes them, want hidden states to become one vector."""

from pathlib import Path
from typing import Any

from polyfleet.models.errors import ModelFileError
from polyfleet.models.fields import Fields, read_json, read_optional_json
from polyfleet.wire.requests import Pooling

MODULES, SENTENCES = "modules.json", "sentence_bert_config.json"
SCORE = "LogitScore"
MODES = {
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_lasttoken": Pooling.LAST,
}
NAMES = {"mean": Pooling.MEAN, "cls": Pooling.CLS, "lasttoken": Pooling.LAST}  # as newer files write them


def read_pooling(folder: Path, context_length: int) -> dict[str, Any]:
    """What ModelConfig is to have of it; nothing for a folder that states no modules. Raises ModelFileError."""
    path = folder / MODULES
    if not path.is_file():
        return {}
    found: dict[str, Any] = {}
    for kind, place in _modules(path):
        if kind == "Pooling":
            found["pooling"] = _pooling(read_json(folder / place / "config.json"))
        elif kind == "Normalize":
            found["normalized"] = True
        elif kind == SCORE:
            continue  # see read_score_tokens
        elif kind != "Transformer" or place not in ("", "."):
            raise ModelFileError(f"{path}: the module {kind} in {place!r} is not supported")
    sentences = read_optional_json(folder / SENTENCES)
    if sentences.flag("do_lower_case", False):
        raise sentences.error("do_lower_case = true is not supported: the tokenizer must do it")
    found["context_length"] = min(context_length, sentences.count("max_seq_length", context_length))
    return found


def read_score_tokens(folder: Path) -> tuple[int, ...]:
    """By whose logits a decoder ranks, that of yes first; none: it doesn't. Raises ModelFileError."""
    path = folder / MODULES
    for kind, place in _modules(path) if path.is_file() else ():
        if kind == SCORE:
            stated = read_json(folder / place / "config.json")
            names = [name for name in ("true_token_id", "false_token_id") if stated.has(name)]
            return tuple(stated.count(name, minimum=0) for name in names)
    return ()


def _modules(path: Path) -> list[tuple[str, str]]:
    """Kind and folder of each, in order."""
    listed = read_json(path, list).items("")
    modules = [Fields(str(path), each) for each in listed if isinstance(each, dict)]
    return [(each.text("type").rpartition(".")[2], each.text("path", "")) for each in modules]


def _pooling(fields: Fields) -> Pooling:
    if fields.has("pooling_mode"):
        name = fields.text("pooling_mode")
        if name not in NAMES:
            raise fields.error(f"pooling_mode = {name!r} is not supported (supported: {', '.join(NAMES)})")
        return NAMES[name]
    wanted = [name for name in fields.values if name.startswith("pooling_mode_") and fields.flag(name, False)]
    if len(wanted) != 1 or wanted[0] not in MODES:
        stated = " and ".join(wanted) or "no pooling"
        raise fields.error(f"{stated} is not supported (supported: one of {', '.join(MODES)})")
    return MODES[wanted[0]]
