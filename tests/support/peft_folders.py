"""Adapters as PEFT saves them, made by hand, and models into which they are merged."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Array = NDArray[Any]
Tensors = Mapping[str, Array]
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


def low_rank_tensors(
    base: Tensors, *, rank: int = 4, seed: int = 0, targets: Collection[str] = LINEARS, size: float = 0.5
) -> dict[str, Array]:
    """lora_A and lora_B of every linear of a model in a layer whose last name is among the targets."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, weight in base.items():
        module = name.removesuffix(".weight")
        if ".layers." in f".{module}" and module.rpartition(".")[2] in targets and weight.ndim == 2:
            rows, columns = weight.shape
            down = random.standard_normal((rank, columns), dtype=np.float32) / np.sqrt(columns)
            up = random.standard_normal((rows, rank), dtype=np.float32) * size
            tensors[f"{PREFIX}{module}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{PREFIX}{module}.lora_B.weight"] = up.astype(np.float32)
    return tensors


def write_adapter(folder: Path, tensors: Tensors, **config: Any) -> Path:
    """The folder of an adapter; its rank is the first tensor's unless it is stated."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = next((min(each.shape) for each in tensors.values() if each.ndim == 2), 4)
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(LINEARS), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**stated, **config}))
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def merged(base: Tensors, adapter: Tensors, scale: float) -> dict[str, Array]:
    """The model's weights W + scale * B @ A."""
    tensors = dict(base)
    for name, up in adapter.items():
        if name.endswith(".lora_B.weight"):
            module = name.removesuffix(".lora_B.weight")
            weight, down = f"{module.removeprefix(PREFIX)}.weight", adapter[f"{module}.lora_A.weight"]
            tensors[weight] = (tensors[weight].astype(np.float64) + scale * (up @ down)).astype(np.float32)
    return tensors
