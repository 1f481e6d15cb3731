"""How a model's own files want its tokens drawn, for requests that leave it open.

As vLLM's `--generation-config auto` takes them: the five fields below and no others, as far as they are stated;
`do_sample` and `max_new_tokens` are left aside.
"""

from collections.abc import Mapping
from typing import NamedTuple

from polyfleet.models.fields import Fields

SamplingDefaults = dict[str, float]  # field of SamplingParams -> value; whole for top_k


class _Range(NamedTuple):
    low: float
    high: float
    open_low: bool = False


RANGES: Mapping[str, _Range] = {
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1, open_low=True),
    "min_p": _Range(0, 1),
    "repetition_penalty": _Range(0, 2, open_low=True),
}
FOLDER_KEYS: Mapping[str, str] = {name: name for name in (*RANGES, "top_k")}
GGUF_KEYS: Mapping[str, str] = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
    "top_k": "general.sampling.top_k",
}
# What publishers recommend in words only, for chat models: part of the model's name in lower case -> values.
# https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
PUBLISHED: Mapping[str, SamplingDefaults] = {"smollm2": {"temperature": 0.2, "top_p": 0.9}}


def folder_defaults(fields: Fields, vocabulary_size: int) -> SamplingDefaults:
    """Of a generation_config.json; raises ModelFileError for a value that no request could ask for."""
    return _stated(fields, FOLDER_KEYS, vocabulary_size)


def gguf_defaults(fields: Fields, vocabulary_size: int) -> SamplingDefaults:
    """Of `general.sampling.*`; raises ModelFileError for a value that no request could ask for."""
    return _stated(fields, GGUF_KEYS, vocabulary_size)


def published_defaults(*names: str) -> SamplingDefaults:
    """For a chat model whose files state none, by what it calls itself."""
    found = (values for part, values in PUBLISHED.items() if any(part in name.lower() for name in names))
    return dict(next(found, {}))


def _stated(fields: Fields, keys: Mapping[str, str], vocabulary_size: int) -> SamplingDefaults:
    stated: SamplingDefaults = {}
    for name, (low, high, open_low) in RANGES.items():
        if fields.has(keys[name]):
            stated[name] = _short(fields.number(keys[name], low, high, open_low=open_low))
    if fields.has(keys["top_k"]):
        top_k = fields.count(keys["top_k"], minimum=-1)
        stated["top_k"] = min(max(top_k, 0), vocabulary_size)  # -1 and 0 both mean: off
    return stated


def _short(value: float) -> float:
    """GGUF's numbers have 32 bits: 0.2, not 0.20000000298."""
    return float(f"{value:.7g}")
