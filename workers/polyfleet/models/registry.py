"""The architectures that can be served, and how one is found."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.kernels.weights.weight import Weights
from polyfleet.models.arcee import ARCEE
from polyfleet.models.architecture import Architecture
from polyfleet.models.bamba import BAMBA
from polyfleet.models.cohere import COHERE, COHERE2
from polyfleet.models.config import ModelConfig
from polyfleet.models.cross_encoder import BERT_CROSS_ENCODER, ROBERTA_CROSS_ENCODER
from polyfleet.models.deepseek import DEEPSEEK2, DEEPSEEK3
from polyfleet.models.dots1 import DOTS1
from polyfleet.models.encoder import BERT, NOMIC_BERT, ROBERTA
from polyfleet.models.ernie import ERNIE, ERNIE_MOE
from polyfleet.models.exaone import EXAONE
from polyfleet.models.exaone4 import EXAONE4
from polyfleet.models.exaone_moe import EXAONE_MOE
from polyfleet.models.falcon import FALCON
from polyfleet.models.falcon_h1 import FALCON_H1
from polyfleet.models.gemma import GEMMA2, GEMMA3, VAULT_GEMMA
from polyfleet.models.gemma1 import GEMMA
from polyfleet.models.glm4 import GLM, GLM4
from polyfleet.models.glm4_moe import GLM4_FLASH, GLM4_MOE, SOLAR
from polyfleet.models.gpt2 import GPT2, GPT_BIGCODE
from polyfleet.models.gpt_neox import GPT_NEOX
from polyfleet.models.gpt_oss import GPT_OSS
from polyfleet.models.gptj import GPTJ
from polyfleet.models.granite import GRANITE, GRANITE_MOE, HYPERCLOVA
from polyfleet.models.granite4 import GRANITE4
from polyfleet.models.hunyuan import HUNYUAN, HUNYUAN_MOE
from polyfleet.models.hunyuan3 import HUNYUAN3
from polyfleet.models.internlm2 import INTERNLM2
from polyfleet.models.internlm3 import INTERNLM3
from polyfleet.models.lfm2 import LFM2, LFM2_MOE
from polyfleet.models.llama import HELIUM, LLAMA
from polyfleet.models.llama4 import LLAMA4
from polyfleet.models.mellum import MELLUM
from polyfleet.models.minicpm import MINICPM
from polyfleet.models.minicpm3 import MINICPM3
from polyfleet.models.minimax_m2 import MINIMAX_M2
from polyfleet.models.mistral import CWM, MISTRAL
from polyfleet.models.mixtral import MIXTRAL
from polyfleet.models.nanochat import NANOCHAT
from polyfleet.models.nemotron_h import NEMOTRON_H
from polyfleet.models.olmo import OLMO, OLMO2, OLMO3
from polyfleet.models.olmoe import FLEX_OLMO, OLMOE
from polyfleet.models.opt import OPT
from polyfleet.models.phi2 import PHI2
from polyfleet.models.phi3 import PHI3
from polyfleet.models.qwen2 import QWEN2
from polyfleet.models.qwen2_moe import QWEN2_MOE
from polyfleet.models.qwen3 import QWEN3
from polyfleet.models.qwen3_moe import QWEN3_MOE
from polyfleet.models.qwen3_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from polyfleet.models.recorder import Recorder, Shapes
from polyfleet.models.seed_oss import SEED_OSS
from polyfleet.models.smollm3 import SMOLLM3
from polyfleet.models.starcoder2 import JAIS2, NEMOTRON, STABLELM, STARCODER2
from polyfleet.models.trinity import TRINITY
from polyfleet.models.youtu import YOUTU

ARCHITECTURES: Mapping[str, Architecture] = {
    each.name: each
    for each in (
        *(LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, PHI3, SMOLLM3, GLM4, GLM),
        *(MINICPM, DEEPSEEK3, DEEPSEEK2, GPT_OSS, GLM4_MOE, QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE),
        *(GEMMA, OLMO2, OLMO3, GRANITE, ERNIE, HUNYUAN, INTERNLM3, SEED_OSS, EXAONE4, STARCODER2, NEMOTRON, STABLELM),
        *(GRANITE_MOE, GRANITE4, OLMOE, ERNIE_MOE, HUNYUAN_MOE, PHI2, ARCEE, INTERNLM2),
        *(COHERE, COHERE2, DOTS1, GLM4_FLASH, MINIMAX_M2, LFM2, LFM2_MOE, EXAONE, TRINITY),
        *(NEMOTRON_H, FALCON_H1, BAMBA, EXAONE_MOE, LLAMA4),
        *(CWM, HELIUM, JAIS2, HYPERCLOVA, SOLAR, MELLUM, YOUTU, MINICPM3, HUNYUAN3),
        *(OLMO, FLEX_OLMO, VAULT_GEMMA, NANOCHAT),
        *(GPT2, GPT_BIGCODE, GPT_NEOX, GPTJ, OPT, FALCON),
        *(BERT, ROBERTA, NOMIC_BERT, BERT_CROSS_ENCODER, ROBERTA_CROSS_ENCODER),
    )
}

NEAREST = 3  # that are named instead of one that is not supported


class UnknownArchitecture(ValueError):
    """The names are not those of one supported architecture; half a sentence that says why, with the nearest."""


def of_folder(classes: Iterable[str], model_type: str) -> Architecture:
    """By the `architectures` of a config.json or, where it has none, its `model_type`; both have to agree."""
    names = list(classes)
    by_type = [each for each in ARCHITECTURES.values() if model_type in each.model_types]
    found = [each for each in ARCHITECTURES.values() if set(names) & set(each.classes)] if names else by_type
    agreeing = [each for each in by_type if set(names) & set(each.written_as)]
    agreeing += [each for each in found if each in by_type or not (by_type and each.model_types)]
    if found and not agreeing:
        stated = (
            f"architectures names {', '.join(names)}, but model_type {model_type!r} is that of {by_type[0].classes[0]}"
        )
        raise UnknownArchitecture(f"{stated}: correct the one that is wrong")
    if len(agreeing) > 1:
        raise UnknownArchitecture(f"architectures names several models ({', '.join(names)}): leave the one that it is")
    if agreeing:
        return agreeing[0]
    if not names and not model_type:
        raise UnknownArchitecture("names neither architectures nor a model_type: what the model computes is not known")
    supported = [each.classes for each in ARCHITECTURES.values()]
    raise UnknownArchitecture(_unknown(", ".join(names) or model_type, supported))


def of_gguf(name: str, *, sparse: bool = False, ranks: bool = False) -> Architecture:
    """By the `general.architecture` of a GGUF file; whether it states experts, and has a head that ranks."""
    found = [each for each in ARCHITECTURES.values() if name in each.gguf]
    if found:
        return next((each for each in found if (each.sparse, each.ranks) == (sparse, ranks)), found[0])
    supported = dict.fromkeys(each.gguf for each in ARCHITECTURES.values() if each.gguf)
    raise UnknownArchitecture(_unknown(repr(name), supported))


def record(config: ModelConfig, weights: Weights) -> KernelGraph:
    """The model's forward pass as a KernelGraph; raises ValueError where a weight that it reads is missing."""
    graph, shapes = recorded(config)
    if missing := shapes.keys() - weights.keys():
        raise ValueError(f"the weight {min(missing)!r} is missing")
    return graph


def weight_shapes(config: ModelConfig) -> Shapes:
    """Every weight of the model by its graph name, with its (rows, columns); vectors have one row."""
    return recorded(config)[1]


def recorded(config: ModelConfig) -> tuple[KernelGraph, Shapes]:
    """The model's forward pass, and the shapes of the weights that it reads."""
    recorder = Recorder(config)
    return ARCHITECTURES[config.architecture].record(config, recorder), recorder.shapes


def _unknown(name: str, supported: Iterable[Sequence[str]]) -> str:
    """What is said of a name; `supported`: the names of each architecture, of which the nearest one stands for it."""
    matcher = SequenceMatcher(None, "", _family(name))

    def likeness(other: str) -> float:
        matcher.set_seq1(_family(other))
        return matcher.ratio()

    nearest = sorted((max(names, key=likeness) for names in supported), key=likeness, reverse=True)
    return (
        f"the architecture {name} is not supported; the nearest that are: {', '.join(nearest[:NEAREST])} "
        "(docs/models.md lists all)"
    )


def _family(name: str) -> str:
    """A name without what says whether the model generates, embeds or ranks, which tells little of its layers."""
    return re.sub(r"(for[a-z]+|(lmhead)?model)$", "", name.strip("'").lower())
