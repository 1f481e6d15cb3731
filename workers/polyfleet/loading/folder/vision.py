"""The part of a folder that sees images: how its files state it, and its weights."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfleet.loading.folder.tensors import Tensors, dense_weight
from polyfleet.loading.folder.text_part import SEES
from polyfleet.loading.model import ImageSettings, ModelFileError, VisionPart
from polyfleet.models.encoder import ACTIVATIONS
from polyfleet.models.fields import Fields, read_json, read_optional_json
from polyfleet.models.folder import MAX_LAYERS, check_activation
from polyfleet.models.recorder import Recorder, Shapes
from polyfleet.models.vision import CHANNELS, NAMES, VisionConfig, record_connector, record_tower

log = logging.getLogger(__name__)

# What files leave out that transformers writes today.
UNSTATED: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
MAX_SIDE, MAX_EDGE = 1024, 4096  # pixels of a crop; of what crops are cut from
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers
IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"


def read_vision(folder: Path, hidden_size: int) -> VisionPart | None:
    """What sees, without its weights; None where nothing does, or where it is not understood, which is logged."""
    whole = read_json(folder / "config.json")
    if not set(whole.values.get("architectures") or ()) & set(SEES):
        return None
    try:
        with whole.in_range():
            processor = _processor(folder)
            config = _read_config(whole, processor, hidden_size)
            return VisionPart(config, _settings(processor, config), {})
    except ModelFileError as error:
        log.warning("images are not taken: %s", error)
        return None


def load_vision(part: VisionPart, tensors: Tensors) -> VisionPart:
    """The part with its weights; raises ModelFileError for one that is missing or misshapen."""
    weights = {}
    for name in tensors.places:
        if known := NAMES.graph_names(name):
            weights[known[0]] = dense_weight(tensors, name, known[0])
    shapes = weight_shapes(part.config)
    for name, shape in shapes.items():
        found = weights.get(name)
        if found is None:
            raise ModelFileError(f"the tensor for {name!r} of the part that sees is missing")
        if (found.rows, found.columns) != shape:
            is_shape, wanted = f"{found.rows} x {found.columns}", f"{shape[0]} x {shape[1]}"
            raise ModelFileError(f"the tensor for {name!r} of the part that sees is {is_shape}, not {wanted}")
    return VisionPart(part.config, part.settings, {name: weights[name] for name in shapes})


def weight_shapes(config: VisionConfig) -> Shapes:
    """Every weight of tower and connector with its (rows, columns); vectors have one row."""
    tower, connector = Recorder(config), Recorder(config)
    record_tower(config, tower)
    record_connector(config, connector)
    return tower.shapes | connector.shapes


def _processor(folder: Path) -> Fields:
    """How images are prepared, as either file states it."""
    whole = read_optional_json(folder / "processor_config.json")
    if whole.has("image_processor"):
        return whole.section("image_processor")
    return read_json(folder / "preprocessor_config.json")


def _settings(processor: Fields, config: VisionConfig) -> ImageSettings:
    """What the gateway needs to prepare images, and to make room for them in prompts."""
    resample = processor.count("resample", 1, minimum=0)
    if resample not in RESAMPLING:
        raise processor.error(f"resample must be one of {', '.join(map(str, RESAMPLING))}, not {resample}")
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if not processor.flag(name, True):
            raise processor.error(f"{name} = false is not supported")
    size = processor.section("size") if processor.has("size") else Fields(processor.path, {})
    return {
        "side": config.side,
        "longest_edge": size.count("longest_edge", 4 * 364, maximum=MAX_EDGE),
        "split": processor.flag("do_image_splitting", True),
        "resample": RESAMPLING[resample],
        "rows": config.rows,
        "token_id": config.token_id,
        "token": IMAGE,
        "around": AROUND,
        "whole": WHOLE,
    }


def _read_config(whole: Fields, processor: Fields, hidden_size: int) -> VisionConfig:
    section = whole.section("vision_config")
    fields = Fields(section.path, {**UNSTATED, **{k: v for k, v in section.values.items() if v is not None}})
    check_activation(fields, tuple(ACTIVATIONS))
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    crop = processor.section("max_image_size") if processor.has("max_image_size") else Fields(processor.path, {})
    side, patch = crop.count("longest_edge", 364, maximum=MAX_SIDE), fields.count("patch_size")
    table, shuffle = fields.count("image_size", maximum=MAX_SIDE) // patch, whole.count("scale_factor", 2)
    if hidden % heads or hidden // heads % 2:
        raise fields.error(f"hidden_size {hidden} gives {heads} heads no even width")
    if fields.count("num_channels", CHANNELS) != CHANNELS:
        raise fields.error(f"num_channels must be {CHANNELS}")
    if side < patch or not table or (side // patch) % shuffle:
        raise fields.error(f"{side // patch} patches a side can't be joined by {shuffle} x {shuffle}")
    return VisionConfig(
        architecture="",
        name="",
        vocabulary_size=table**2,
        hidden_size=hidden,
        num_layers=fields.count("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=fields.count("intermediate_size"),
        norm_eps=fields.positive("layer_norm_eps"),
        inverse_frequencies=(),
        context_length=(side // patch) ** 2,
        tied_embeddings=True,
        causal=False,
        side=side,
        patch=patch,
        shuffle=shuffle,
        output_size=hidden_size,
        token_id=whole.count("image_token_id", 128257, minimum=0),
        factor=processor.positive("rescale_factor", 1 / 255),
        mean=_of_channels(processor, "image_mean"),
        deviation=_of_channels(processor, "image_std"),
        activation=ACTIVATIONS[fields.text("hidden_act")],
    )


def _of_channels(processor: Fields, name: str) -> tuple[float, ...]:
    values = processor.items(name) if processor.has(name) else [0.5] * CHANNELS
    good = len(values) == CHANNELS and all(isinstance(each, (int, float)) and math.isfinite(each) for each in values)
    if not good or (name == "image_std" and not all(each > 0 for each in values)):
        raise processor.error(f"{name} must hold {CHANNELS} finite numbers, deviations over 0")
    return tuple(map(float, values))
