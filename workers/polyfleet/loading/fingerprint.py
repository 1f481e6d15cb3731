"""A model's fingerprint: two loaded models with the same one give the same tokens, wherever their files lie."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

import torch

from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.model import LoadedModel

WHOLE_BYTES = 1 << 14  # a tensor up to this size counts with all its bytes
# Those that count only where they are set, as they once were not there.
UNSTATED: Mapping[str, Any] = {
    "embeds_only": False,
    "pooling": None,
    "normalized": False,
    "cross_encoder": False,
    "segments": 1,
    "score_tokens": (),
    "bounded": True,
}
SAMPLES, SAMPLE_BYTES = 32, 256  # a larger one with so many pieces of that size, from its first to its last byte


def fingerprint(model: LoadedModel) -> str:
    """32 hexadecimal digits of configuration (names aside), tokenizer assets, and each weight's shape, format and data,
    those of what sees images among them.

    Of large weights a sample is read, 8 KiB each, so that a mapped file of many gigabytes takes milliseconds: another
    training, merge or quantisation changes it; a change of single numbers between the pieces does not.
    """
    stated = asdict(model.config).items()
    config = {key: _rounded(value) for key, value in stated if key not in UNSTATED or value != UNSTATED[key]}
    del config["name"]
    digest = blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=16)
    digest.update(f"tokenizer {model.tokenizer.hash if model.tokenizer else ''}".encode())
    for name in sorted(model.weights):
        _add(digest, model.weights[name])
    for name in sorted(model.vision.weights if model.vision else ()):
        digest.update(b"vision ")
        _add(digest, model.vision.weights[name])  # type: ignore[union-attr]
    return digest.hexdigest()


def _rounded(value: Any) -> Any:
    """Numbers to 9 digits: processors differ in the last bits of what loading computes, rotary frequencies say."""
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return f"{value:.9g}" if isinstance(value, float) else value


def _add(digest: "blake2b", weight: Weight) -> None:
    digest.update(f"{weight.name} {weight.format.value} {weight.rows} {weight.columns} ".encode())
    data = weight.data.contiguous().view(-1).view(torch.uint8)
    size = data.numel()
    if size <= WHOLE_BYTES:
        digest.update(data.numpy().tobytes())
        return
    last = size - SAMPLE_BYTES
    for number in range(SAMPLES):
        start = last * number // (SAMPLES - 1)
        digest.update(data[start : start + SAMPLE_BYTES].numpy().tobytes())
