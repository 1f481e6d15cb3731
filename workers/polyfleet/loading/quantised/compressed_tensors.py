"""Folders in the format of compressed-tensors, which llm-compressor and others write: int4, int8 and fp8.

Each of `config_groups` says for its `targets` how weights are quantised; what is in none of them, or is ignored, is
stored dense. Scales of activations are left aside: activations are not rounded here.
"""

from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.quantised.scheme import Group, Parts, Scheme, check_keys, choice
from polyfleet.models.fields import Fields

INTEGERS = ("_packed", "_scale", "_zero_point", "_g_idx", "_shape", "")  # suffixes
FORMATS = ("dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
STRATEGIES = ("tensor", "channel", "group", "block")
LAYERS = ("Linear", "MoE")  # targets that are a kind of module
HARMLESS = ("quant_method", "version", "quantization_status", "global_compression_ratio", "ignore", "kv_cache_scheme")
ROUNDING = ("dynamic", "observer", "observer_kwargs", "actorder", "scale_dtype", "zp_dtype")


def read_compressed(section: Fields) -> Scheme:
    """By the `quantization_config`; raises ModelFileError for what is not understood."""
    choice(section, "format", FORMATS, "dense")
    for key in ("sparsity_config", "transform_config"):
        section.read.add(key)
        stated = section.values.get(key) or {}
        if stated and (key == "transform_config" or stated.get("format", "dense") != "dense"):
            raise section.error(f"{key} is not supported: it changes what the weights stand for")
    stated = section.section("config_groups")
    groups = [_group(stated.section(name)) for name in stated.values]
    check_keys(section, HARMLESS)

    def read(name: str, parts: Parts) -> Weight:
        from polyfleet.loading.quantised.words import read_group

        return read_group(name, parts, _of(groups, name.removesuffix(".weight")))

    marks = ("_packed", "_scale")
    return Scheme("compressed-tensors", marks, INTEGERS, read)


def _group(section: Fields) -> Group:
    weights = section.section("weights")
    kind = choice(weights, "type", ("int", "float"), "int")
    bits = choice(weights, "num_bits", (4, 8) if kind == "int" else (8,), 8)
    strategy = choice(weights, "strategy", STRATEGIES, "group" if weights.has("group_size") else "tensor")
    size = weights.count("group_size", minimum=-1) if weights.has("group_size") else 0
    tile = weights.items("block_structure") if weights.has("block_structure") else None
    weights.flag("symmetric", True)
    check_keys(weights, ROUNDING)
    choice(section, "format", FORMATS, "dense")
    targets = tuple(map(str, section.items("targets"))) if section.has("targets") else LAYERS
    check_keys(section, ("input_activations", "output_activations"))
    return Group(targets, bits, kind == "float", strategy, max(size, 0) if strategy == "group" else 0, tile)


def _of(groups: list[Group], module: str) -> Group:
    named = [group for group in groups if group.names(module)]
    usual = [group for group in groups if set(LAYERS) & set(group.targets)]
    if not named and not usual:
        raise ValueError("is quantised, and no target of config_groups names it")
    return (named or usual)[0]
