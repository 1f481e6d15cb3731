"""Gemma 2 and 3, text: each branch between two norms (of VaultGemma behind one) whose weights leave 1 out, local and
global layers."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL, SLIDING, check_activation, read_sizes, read_sliding, read_window, spread
from polyfleet.models.folder_rope import StatedRope, read_rope
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gguf_keys import read_sliding as gguf_sliding
from polyfleet.models.gguf_keys import read_window as gguf_window
from polyfleet.models.recorder import Recorder
from polyfleet.models.rope import inverse_frequencies

GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
WINDOW = 4096  # of files that say nothing
CONTEXTS = {2: 8192, 3: 131072}
GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0  # of Gemma 3's files that say nothing
LARGEST = {2: 46, 3: 62}  # layers of the 27B models, whose GGUF files don't state that they scale otherwise
PERIODS = {2: 2, 3: 6}  # the last of so many layers sees all


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(ModelConfig):
    """`local`: which layers are. `local_frequencies`: of their rope; none: as the others'."""

    attention_scale: float
    attention_cap: float
    logit_cap: float
    local: tuple[bool, ...]
    local_frequencies: tuple[float, ...] = ()


def record(config: GemmaConfig, model: Recorder, *, head_norms: bool = False, post_norms: bool = True) -> KernelGraph:
    """Embeddings grow with the root of the hidden size."""
    graph, ropes = model.graph, (model.rope(), model.rope(config.local_frequencies or None))
    x = model.embedding(config.hidden_size**0.5)

    def behind(branch: int, name: str) -> int:
        return model.norm(branch, name) if post_norms else branch

    for layer in model.layers():
        attended = model.attention(
            model.norm(x, "attention_norm"),
            ropes[config.local[layer]],
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            head_norms=head_norms,
            window=config.window(layer),
            scale=config.attention_scale,
            soft_cap=config.attention_cap,
        )
        x = graph.add(behind(attended, "attention_post_norm"), x)
        inner = model.gated_mlp(model.norm(x, "mlp_norm"), OpKind.GELU_TANH)
        x = graph.add(behind(inner, "mlp_post_norm"), x)
    return model.finish(x, soft_cap=config.logit_cap)


def _record_gemma3(config: GemmaConfig, model: Recorder) -> KernelGraph:
    return record(config, model, head_norms=True)


def _record_vault(config: GemmaConfig, model: Recorder) -> KernelGraph:
    return record(config, model, post_norms=False)


def _is_local(period: int, layer: int) -> bool:
    return (layer + 1) % period != 0


def _read(fields: Fields, generation: int, rope: StatedRope | None = None, **more: Any) -> GemmaConfig:
    activation = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    check_activation(fields, (*GELU, "gelu") if activation == "hidden_act" else GELU, activation)
    fields.text("hidden_act", ""), fields.count("sliding_window_size", 1)  # transformers does not read them either
    sizes = read_sizes(fields, head_dim=256, context_length=CONTEXTS[generation], tied=True, rope=rope)
    period = fields.count("sliding_window_pattern", PERIODS[generation])
    local = read_sliding(fields, sizes["num_layers"], lambda layer: _is_local(period, layer))
    caps = ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)
    attention_cap, logit_cap = (
        fields.positive(key) if fields.has(key) else usual if generation == 2 and key not in fields.values else 0.0
        for key, usual in caps
    )
    return GemmaConfig(
        **sizes,
        **more,
        attention_bias=fields.flag("attention_bias", False),
        windows=spread(read_window(fields, WINDOW), local, sizes["context_length"]),
        local=local,
        wide_norms=True,
        attention_scale=fields.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_cap=attention_cap,
        logit_cap=logit_cap,
    )


def _read_gemma2(fields: Fields) -> ModelConfig:
    return _read(fields, 2)


def _read_gemma3(fields: Fields) -> ModelConfig:
    """Two ropes: newer files have a section for each kind of layer, older ones a second base, both without scaling."""
    head_dim = fields.count("head_dim", 256)
    sections = fields.section("rope_parameters") if fields.has("rope_parameters") else None
    if sections is None or not sections.has(FULL):
        local = inverse_frequencies(head_dim, fields.positive("rope_local_base_freq", LOCAL_BASE))
        return _read(fields, 3, read_rope(fields, head_dim, base=GLOBAL_BASE), local_frequencies=local)
    ropes = [
        read_rope(fields, head_dim, base=base, section=sections.section(kind))
        for kind, base in ((FULL, GLOBAL_BASE), (SLIDING, LOCAL_BASE))
    ]
    if ropes[1].amplitude != 1:
        raise fields.error("rope_parameters: local layers with an attention factor are not supported")
    return _read(fields, 3, ropes[0], local_frequencies=ropes[1].frequencies)


def _read_gguf(keys: GgufKeys, generation: int) -> GemmaConfig:
    sizes, fields = keys.sizes(), keys.fields
    largest = sizes["num_layers"] == LARGEST[generation]
    local = gguf_sliding(keys, sizes["num_layers"], lambda layer: _is_local(PERIODS[generation], layer))
    width = sizes["hidden_size"] / sizes["num_heads"] if largest else sizes["head_dim"]
    caps = ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)
    attention_cap, logit_cap = (
        fields.positive(key) if fields.has(key) else usual if generation == 2 else 0.0 for key, usual in caps
    )
    return GemmaConfig(
        **sizes,
        windows=spread(gguf_window(keys, WINDOW), local, sizes["context_length"]),
        local=local,
        wide_norms=True,
        attention_scale=width**-0.5,
        attention_cap=attention_cap,
        logit_cap=logit_cap,
    )


def _read_gguf2(keys: GgufKeys) -> ModelConfig:
    return _read_gguf(keys, 2)


def _read_gguf3(keys: GgufKeys) -> ModelConfig:
    config, base = _read_gguf(keys, 3), keys.fields.positive("rope.freq_base_swa", LOCAL_BASE)
    return replace(config, local_frequencies=inverse_frequencies(config.head_dim, base))


_LAYER = {
    "post_attention_layernorm": "attention_post_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}
_GGUF_LAYER = {"post_attention_norm": "attention_post_norm", "post_ffw_norm": "mlp_post_norm"}

GEMMA2 = Architecture(
    name="gemma2",
    title="Gemma 2",
    classes=("Gemma2ForCausalLM",),
    model_types=("gemma2",),
    gguf=("gemma2",),
    read_folder=_read_gemma2,
    read_gguf=_read_gguf2,
    record=record,
    folder_names=names.folder(_LAYER, norm_offset=1.0),
    gguf_names=names.gguf(_GGUF_LAYER),
)
VAULT_GEMMA = replace(
    GEMMA2,
    name="vaultgemma",
    title="VaultGemma",
    classes=("VaultGemmaForCausalLM",),
    model_types=("vaultgemma",),
    gguf=(),
    record=_record_vault,
    folder_names=names.folder({"pre_feedforward_layernorm": "mlp_norm"}, norm_offset=1.0),
)
GEMMA3 = replace(
    GEMMA2,
    name="gemma3",
    title="Gemma 3",
    classes=("Gemma3ForCausalLM",),
    model_types=("gemma3_text",),
    gguf=("gemma3",),
    read_folder=_read_gemma3,
    read_gguf=_read_gguf3,
    record=_record_gemma3,
    notes="text",
)
