"""OLMo: Llama with norms around the mean, without weights. OLMo 2 and 3: norms behind attention and MLP alone, and of
all queries and keys of a row before they turn. Of OLMo 3, layers with a window turn without scaling."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL, MAX_HEAD_DIM, SLIDING, check_activation, read_sizes, read_windows
from polyfleet.models.folder_rope import DEFAULT_BASE, read_rope, rope_section
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gguf_keys import read_windows as gguf_windows
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder
from polyfleet.models.rope import inverse_frequencies

_NORMS: Mapping[str, Any] = {"layer_norms": True, "norm_biases": False, "norm_weights": False}  # of OLMo 1
PERIOD = 4  # the last of so many layers sees all


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoConfig(ModelConfig):
    """`local_frequencies`: of the rope of layers with a window."""

    local_frequencies: tuple[float, ...]


def record(config: OlmoConfig, model: Recorder) -> KernelGraph:
    """The decoder of norms behind its branches."""
    bias, ropes = config.attention_bias, {True: model.rope(config.local_frequencies), False: model.rope()}

    def attend(layer: int, x: int) -> int:
        window = config.window(layer)
        rope = ropes[window > 0]
        return model.attention(
            *(x, rope),
            bias=bias,
            output_bias=bias,
            window=window,
            prepare=lambda each, name: model.graph.rope(model.norm(each, f"{name}_norm"), rope),
        )

    return model.post_norm_decoder(attend)


def _is_local(layer: int) -> bool:
    return (layer + 1) % PERIOD != 0


def _read_olmo(fields: Fields) -> ModelConfig:
    """The first: Llama's layers, whose norms go around the mean and have no weights."""
    check_activation(fields)
    sizes = {**read_sizes(fields), "norm_eps": 1e-5}
    return ModelConfig(**sizes, attention_bias=fields.flag("attention_bias", False), **_NORMS)


def _read_gguf1(keys: GgufKeys) -> ModelConfig:
    return ModelConfig(**keys.sizes(), **_NORMS)


def _read_olmo2(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, norm_eps=1e-5)
    bias = fields.flag("attention_bias", False)
    return OlmoConfig(**sizes, attention_bias=bias, local_frequencies=sizes["inverse_frequencies"])


def _read_olmo3(fields: Fields) -> ModelConfig:
    """Newer files have a section of the rope for each kind of layer, older ones scale that of layers that see all."""
    check_activation(fields)
    width = max(1, fields.count("hidden_size") // fields.count("num_attention_heads"))
    head_dim = fields.count("head_dim", width, maximum=MAX_HEAD_DIM)
    sections = fields.section("rope_parameters") if fields.has("rope_parameters") else None
    if sections is not None and sections.has(FULL):
        rope, local = (read_rope(fields, head_dim, section=sections.section(kind)) for kind in (FULL, SLIDING))
        if local.amplitude != 1:
            raise fields.error("rope_parameters: local layers with an attention factor are not supported")
        frequencies = local.frequencies
    else:
        rope, section = read_rope(fields, head_dim), rope_section(fields)
        stated = section if section.has("rope_theta") else fields
        frequencies = inverse_frequencies(head_dim, stated.positive("rope_theta", DEFAULT_BASE))
    sizes = read_sizes(fields, norm_eps=1e-5, rope=rope)
    return OlmoConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        windows=read_windows(fields, sizes, _is_local, default=4096),
        local_frequencies=frequencies,
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    """OLMo 3's are those that state a window."""
    sizes = keys.sizes()
    base = keys.fields.positive("rope.freq_base", DEFAULT_BASE)
    base = keys.fields.positive("rope.freq_base_swa", base)
    frequencies = inverse_frequencies(sizes["head_dim"], base)
    return OlmoConfig(**sizes, windows=gguf_windows(keys, sizes, _is_local), local_frequencies=frequencies)


OLMO = replace(
    LLAMA,
    name="olmo",
    title="OLMo",
    classes=("OlmoForCausalLM",),
    model_types=("olmo",),
    gguf=("olmo",),
    read_folder=_read_olmo,
    read_gguf=_read_gguf1,
    notes="but those that clip queries, keys and values",
)
OLMO2 = replace(
    LLAMA,
    name="olmo2",
    title="OLMo 2",
    classes=("Olmo2ForCausalLM",),
    model_types=("olmo2",),
    gguf=("olmo2",),
    read_folder=_read_olmo2,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(names.POST_NORMS),
    gguf_names=names.gguf(names.GGUF_POST_NORMS),
    notes="GGUF files of OLMo 3 too",
)
OLMO3 = replace(
    OLMO2,
    name="olmo3",
    title="OLMo 3",
    classes=("Olmo3ForCausalLM",),
    model_types=("olmo3",),
    gguf=(),
    read_folder=_read_olmo3,
    notes="",
)
