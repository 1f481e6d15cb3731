"""From a PEFT folder (adapter_config.json, adapter_model.safetensors) to what an adapter adds to each weight.

Nothing in the folder is executed. What of PEFT is not plain LoRA is refused by name.
"""

import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyfleet.kernels.adapters import LowRank, Parts
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.folder.files import ADAPTER, check_is_adapter
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.other_kinds import PICKLES
from polyfleet.loading.placing import place
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import MAX_NUMBER, Fields, read_json
from polyfleet.models.registry import ARCHITECTURES, weight_shapes

log = logging.getLogger(__name__)

WEIGHTS = "adapter_model.safetensors"
KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.[A-Za-z0-9_-]+)?\.weight")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# What makes an adapter more than LoRA: keys of its configuration, and what to call them.
MORE = {
    "use_dora": "DoRA",
    "modules_to_save": "modules trained as a whole (modules_to_save)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "target_parameters": "matrices of parameters (target_parameters)",
    "alora_invocation_tokens": "activation by tokens (alora_invocation_tokens)",
    "layer_replication": "replicated layers (layer_replication)",
    "fan_in_fan_out": "matrices that lie the other way round (fan_in_fan_out)",
    "lora_bias": "biases (lora_bias)",
    "use_qalora": "QALoRA",
}
CHANGED_BASE = (
    "pissa",
    "olora",
    "corda",
    "loftq",
)  # of init_lora_weights: the base's own numbers were changed for them


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter in host memory."""

    path: str
    fingerprint: str  # 32 hexadecimal digits of all its numbers
    rank: int  # the largest
    parts: Parts


def load_adapter(path: str | Path, config: ModelConfig, adaptable: Collection[str], most: int) -> Adapter:
    """An adapter of the model, which may change the weights `adaptable` by matrices of rank `most` at most.

    Raises ModelFileError, whose message is one sentence.
    """
    folder = Path(path).expanduser()
    fields = _read_config(folder)
    pairs = _read_pairs(_weights_file(folder))
    base = fields.text("base_model_name_or_path", "") if fields.has("base_model_name_or_path") else ""
    owner = f" (it was trained for {base!r:.128})" if base else ""
    parts: dict[str, LowRank] = {}
    for module, (down, up) in sorted(pairs.items()):
        _check_rank(folder, module, len(down), most, fields)
        up = _scaled(up, fields, module)
        try:
            parts |= _placed(module, down, up, config, adaptable)
        except ModelFileError as error:
            raise ModelFileError(f"{folder}: {error}{owner}") from None
    _warn_of_other_base(folder, base, config.name)
    return Adapter(str(path), _fingerprint(parts), max(len(each.down) for each in parts.values()), parts)


def _read_config(folder: Path) -> Fields:
    check_is_adapter(folder)
    fields = read_json(folder / ADAPTER)
    if (kind := fields.text("peft_type", "")) != "LORA":
        raise fields.error(f"an adapter of the type {kind!r:.40} is not supported, only LORA")
    for key, what in MORE.items():
        if fields.values.get(key):
            raise fields.error(f"{what} are not supported beside LoRA" if "(" in what else f"{what} is not supported")
    if fields.values.get("bias", "none") not in ("none", None):
        raise fields.error(f"trained biases (bias {fields.values['bias']!r:.40}) are not supported beside LoRA")
    start = fields.values.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(CHANGED_BASE):
        raise fields.error(f"it belongs to a base whose weights were changed for it (init_lora_weights {start!r:.40})")
    fields.count("r", maximum=2**20)
    return fields


def _weights_file(folder: Path) -> Path:
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    pickles = sorted(each.name for each in folder.iterdir() if each.suffix in PICKLES)
    if pickles:
        raise ModelFileError(
            f"{folder}: the matrices are in a pickle file ({pickles[0]}), which could run code; use safetensors"
        )
    raise ModelFileError(f"{folder}: the folder has no {WEIGHTS}")


def _read_pairs(file: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """lora_A and lora_B of each module, float32."""
    sides: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - safe_open has no other way to list them
                module, side = _module_of(file, name)
                sides.setdefault(module, {})[side] = _matrix(file, name, tensors.get_tensor(name))
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{file}: the file is truncated or corrupt ({error})") from None
    if not sides:
        raise ModelFileError(f"{file}: holds no matrices")
    for module, found in sides.items():
        if len(found) < 2:
            missing = "A" if "B" in found else "B"
            raise ModelFileError(f"{file}: lora_{missing} of {module!r:.128} is missing")
        if found["A"].shape[0] != found["B"].shape[1]:
            shapes = " and ".join(f"{each.shape[0]} x {each.shape[1]}" for each in (found["A"], found["B"]))
            raise ModelFileError(
                f"{file}: lora_A and lora_B of {module!r:.128} are {shapes}, which have no common rank"
            )
    return {module: (found["A"], found["B"]) for module, found in sides.items()}


def _module_of(file: Path, name: str) -> tuple[str, str]:
    if match := KEY.fullmatch(name):
        return match["module"], match["side"]
    what = next((each for each in ("lora_embedding", "lora_magnitude_vector", "modules_to_save") if each in name), "")
    names = {"lora_embedding": "an adapted embedding", "lora_magnitude_vector": "DoRA"}
    if what:
        raise ModelFileError(
            f"{file}: {names.get(what, 'a module trained as a whole')} ({name!r:.128}) is not supported"
        )
    raise ModelFileError(f"{file}: tensor {name!r:.128} is no matrix of LoRA")


def _matrix(file: Path, name: str, data: Tensor) -> Tensor:
    if data.dtype not in DTYPES or data.dim() != 2 or not data.numel():
        kind = str(data.dtype).removeprefix("torch.")
        raise ModelFileError(
            f"{file}: tensor {name!r:.128} is {kind} {list(data.shape)}, not a matrix of floating-point numbers"
        )
    if not bool(data.isfinite().all()):
        raise ModelFileError(f"{file}: tensor {name!r:.128} holds numbers that are not finite")
    return data.float()


def _check_rank(folder: Path, module: str, rank: int, most: int, fields: Fields) -> None:
    if rank > most:
        raise ModelFileError(
            f"{folder}: the rank of {module!r:.128} is {rank}, this deployment takes up to {most} (max_rank)"
        )
    stated = _by_pattern(fields, "rank_pattern", module, fields.count("r"))
    if stated != rank:
        raise fields.error(f"says rank {stated} of {module!r:.128}, the file has {rank}")


def _scaled(up: Tensor, fields: Fields, module: str) -> Tensor:
    """As lora_alpha says."""
    alpha = _by_pattern(fields, "alpha_pattern", module, fields.values.get("lora_alpha", 8))
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) <= MAX_NUMBER:
        raise fields.error(f"lora_alpha of {module!r:.128} must be a finite number, not {alpha!r:.40}")
    rank = up.shape[1]
    scaled = up * (alpha / (math.sqrt(rank) if fields.flag("use_rslora", False) else rank))
    if not bool(scaled.isfinite().all()):
        raise fields.error(f"lora_alpha of {module!r:.128} is {alpha:g}, which takes its numbers out of range")
    return scaled


def _by_pattern(fields: Fields, key: str, module: str, default: Any) -> Any:
    """What the first pattern that matches the end of a module's name says, as PEFT reads it."""
    patterns = fields.values.get(key) or {}
    if not isinstance(patterns, Mapping):
        raise fields.error(f"{key} must be an object")
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error:
            raise fields.error(f"{key} has {pattern!r:.80}, which is no regular expression") from None
    return default


def _placed(
    module: str, down: Tensor, up: Tensor, config: ModelConfig, adaptable: Collection[str]
) -> Iterator[tuple[str, LowRank]]:
    """The parts of a module by weight: rows of `up` go where a model file's own rows go. Raises ModelFileError."""
    names, shapes = ARCHITECTURES[config.architecture].folder_names, weight_shapes(config)
    known = names.graph_names(f"{module}.weight")
    if not known:  # saved without the head, whose modules lie one level deeper
        known = names.graph_names(f"model.{module}.weight")
        module = f"model.{module}"
    if not known or any(name not in shapes for name in known):
        raise ModelFileError(f"the model has no {module!r:.128}")
    if any(name not in adaptable for name in known):
        raise ModelFileError(f"{module!r:.128} can't be adapted, only linears inside layers can")
    rows, columns = sum(shapes[name][0] for name in known), shapes[known[0]][1]
    if (len(up), down.shape[1]) != (rows, columns):
        raise ModelFileError(
            f"{module!r:.128} is adapted as {len(up)} x {down.shape[1]}, the model's is {rows} x {columns}"
        )
    whole = Weight(f"{module}.weight", WeightFormat.F32, rows, up.shape[1], up)
    for weight in place(whole, names, config, shapes):
        yield weight.name, LowRank(down.contiguous(), weight.data.contiguous())


def _fingerprint(parts: Parts) -> str:
    digest = blake2b(digest_size=16)
    for name, part in sorted(parts.items()):
        digest.update(f"{name} {len(part.down)} ".encode())
        for each in (part.down, part.up):
            digest.update(each.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _warn_of_other_base(folder: Path, base: str, name: str) -> None:
    """Names are no proof: the same model is called by many."""

    def plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.rstrip("/").rpartition("/")[2].lower())

    if base and plain(base) not in plain(name) and plain(name) not in plain(base):
        log.warning("%s: the adapter was trained for %.128r and is used with %.128r.", folder, base, name)
