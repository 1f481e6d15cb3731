"""config.json and generation_config.json of a Hugging Face folder: read, checked, put into a ModelConfig."""

import logging
from dataclasses import replace
from pathlib import Path

from polyfleet.loading.folder.fields import check_fields
from polyfleet.loading.folder.pooling import read_pooling, read_score_tokens
from polyfleet.loading.folder.ranking import ranking_by_name
from polyfleet.loading.folder.text_part import text_names, text_part
from polyfleet.loading.quantised.methods import read_scheme
from polyfleet.loading.quantised.scheme import Scheme
from polyfleet.loading.ranking import ranking
from polyfleet.loading.tokenizer.end_tokens import union
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.cross_encoder import read_bounded
from polyfleet.models.fields import Fields, read_json, read_optional_json
from polyfleet.models.registry import UnknownArchitecture, of_folder

log = logging.getLogger(__name__)

MODELS_WITH_HEADS = ("AquilaModel", "GPT2LMHeadModel")  # whose class is called as those without one are
DUAL_CHUNKS = "dual_chunk_attention_config"
NO_CODE = "the code that auto_map names is never executed"


def read_config(folder: Path) -> tuple[Architecture, ModelConfig, Scheme | None]:
    """The model's architecture, configuration, and quantisation if it has one; raises ModelFileError."""
    whole = read_json(folder / "config.json")
    fields = text_part(whole)
    architecture, scheme = _architecture(fields), read_scheme(fields)
    with fields.in_range():
        config = _before_chunks(fields, architecture.read_folder(fields))
        config = replace(
            config,
            architecture=architecture.name,
            name=folder.resolve().name,
            end_token_ids=_end_tokens(folder, fields),
            embeds_only=config.embeds_only or _headless(fields),
            **read_pooling(folder, config.context_length),
        )
        config = _ranking(folder, fields, config)
        check_fields(fields, config)
    if fields.has("auto_map"):
        log.warning("%s: %s", fields.path, NO_CODE)
    if fields is not whole:
        architecture = replace(architecture, folder_names=text_names(architecture.folder_names, whole))
    return architecture, config, scheme


def _ranking(folder: Path, fields: Fields, config: ModelConfig) -> ModelConfig:
    """As sentence-transformers' modules say, or the folder's name."""
    if tokens := read_score_tokens(folder):
        stated = read_optional_json(folder / "config_sentence_transformers.json")
        return ranking(config, tokens, str(folder), bounded=read_bounded(stated))
    return ranking_by_name(folder, config)


def _architecture(fields: Fields) -> Architecture:
    names = fields.items("architectures") if fields.has("architectures") else []
    try:
        architecture = of_folder(map(str, names), fields.text("model_type", ""))
    except UnknownArchitecture as error:
        raise fields.error(f"{error}; {NO_CODE}" if fields.has("auto_map") else str(error)) from None
    return architecture


def _before_chunks(fields: Fields, config: ModelConfig) -> ModelConfig:
    """With the context up to which dual chunk attention is plain attention: the end of its first chunk."""
    if not fields.has(DUAL_CHUNKS):
        return config
    chunks = fields.section(DUAL_CHUNKS)
    size, local = chunks.count("chunk_size", 8192), chunks.count("local_size", 1024)
    if size <= local:
        raise chunks.error(f"chunk_size must be over local_size ({local}), not {size}")
    unscaled = chunks.count("original_max_position_embeddings", 0, minimum=0) or size  # longer ones scale queries
    return replace(config, context_length=min(config.context_length, size - local, unscaled))


def _headless(fields: Fields) -> bool:
    """Whether its class is that of a model without a language model's head."""
    names = fields.items("architectures") if fields.has("architectures") else []
    return bool(names) and all(str(name).endswith("Model") and str(name) not in MODELS_WITH_HEADS for name in names)


def _end_tokens(folder: Path, fields: Fields) -> tuple[int, ...]:
    """Of generation_config.json and config.json."""
    generation = read_optional_json(folder / "generation_config.json")
    return union(generation.token_ids("eos_token_id"), fields.token_ids("eos_token_id"))
