"""What a model is, told before it is loaded."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyfleet.backends import BackendRegistry
from polyfleet.engine.fitting import Fit, Site, fit, headers_only, site_here
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Attention, OpKind, of
from polyfleet.loading.labels import read_labels
from polyfleet.loading.load import load_model
from polyfleet.loading.model import TokenizerAssets
from polyfleet.models.registry import ARCHITECTURES, record
from polyfleet.wire.options import EngineOptions

ATTENDING = {OpKind.PAGED_ATTENTION: "attention", OpKind.LATENT_ATTENTION: "latent attention"}


@dataclass(frozen=True, slots=True)
class Memory:
    """What layers of a kind remember: numbers for each token, or (kind "state") for each sequence."""

    kind: str  # attention, latent attention or state
    layers: int
    numbers: int  # of each layer
    window: int = 0  # tokens that a layer sees; 0: all


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What a model's tokenizer is."""

    kind: str  # BPE, Unigram, WordPiece or WordLevel
    tokens: int
    chat_template: bool
    tool_template: bool  # another one for chats with tools
    tool_calls: str  # the format that its templates have them in; empty: none that is known


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a model's files say of it. `formats`: how many numbers are stored in each."""

    path: str
    name: str
    architecture: str
    parameters: int
    formats: dict[str, int]
    quantisation: str  # the method that a folder names; empty: none
    licence: str  # as the files state it; empty: they don't
    context_length: int
    vocabulary_size: int
    memory: tuple[Memory, ...]
    tokenizer: Tokenizer | None
    embeds_only: bool
    cross_encoder: bool
    fits: tuple[Fit, ...]


def inspect_model(
    path: str, options: EngineOptions, sites: Sequence[Site], tool_calls: Callable[[str], str]
) -> Inspection:
    """The model, and how it fits each site with these options. `tool_calls` names the format in a template's source.

    Reads headers, and few weights. Raises ModelFileError.
    """
    loaded = load_model(path, numbers=False)
    formats: Counter[str] = Counter()
    for weight in loaded.weights.values():
        formats[weight.format.value] += weight.rows * weight.columns
    config, model, labels = loaded.config, headers_only(loaded), read_labels(loaded.path)
    return Inspection(
        loaded.path,
        config.name,
        ARCHITECTURES[config.architecture].title,
        sum(formats.values()),
        dict(formats.most_common()),
        labels.quantisation,
        labels.licence,
        config.context_length,
        config.vocabulary_size,
        _memory(record(config, model.weights)),
        _tokenizer(loaded.tokenizer, tool_calls),
        config.embeds_only,
        config.cross_encoder,
        tuple(fit(model, site, options) for site in sites),
    )


def sites_here(memory_bytes: int = 0) -> tuple[Site, ...]:
    """All devices of this machine, as if so many bytes of each were free (0: those that are)."""
    found = []
    for accelerator, devices in BackendRegistry.discover().items():
        names = [accelerator] if len(devices) == 1 else [f"{accelerator}:{each.index}" for each in devices]
        found += [site_here(name, memory_bytes) for name in names]
    return tuple(found)


def _memory(graph: KernelGraph) -> tuple[Memory, ...]:
    kinds: Counter[tuple[str, int, int]] = Counter()
    seen: set[int] = set()
    for op in graph.ops:
        if op.kind not in ATTENDING:
            continue
        attention = of(op, Attention)
        if attention.cache in seen:
            continue
        seen.add(attention.cache)
        cache = graph.caches[attention.cache]
        kinds[ATTENDING[op.kind], cache.sides * cache.heads * cache.width, attention.window] += 1
    found = [Memory(kind, layers, numbers, window) for (kind, numbers, window), layers in kinds.items()]
    if graph.states:
        found.append(Memory("state", len(graph.states), sum(each.width for each in graph.states) // len(graph.states)))
    return tuple(found)


def _tokenizer(assets: TokenizerAssets | None, tool_calls: Callable[[str], str]) -> Tokenizer | None:
    if assets is None:
        return None
    document = json.loads(assets.document)
    model, added = document["tokenizer"]["model"], document["tokenizer"].get("added_tokens") or ()
    vocabulary = model.get("vocab") or ()
    known = set(vocabulary) if isinstance(vocabulary, dict) else {piece[0] for piece in vocabulary}
    tokens = len(known | {each["content"] for each in added})
    chat, tools = document["chat_template"] or "", document.get("tool_template") or ""
    return Tokenizer(model.get("type", "BPE"), tokens, bool(chat), bool(tools), tool_calls(chat + tools))
