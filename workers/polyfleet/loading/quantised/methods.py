"""The methods of quantisation that folders state, each as a Scheme. No torch is imported until a tensor is read."""

from collections.abc import Callable, Mapping

from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.quantised.compressed_tensors import read_compressed
from polyfleet.loading.quantised.scheme import Parts, Scheme, check_keys, choice, part
from polyfleet.models.fields import Fields

COLUMNS_FIRST = (".qweight", ".qzeros", ".scales", ".g_idx")  # of GPTQ and AWQ
FP8_SUFFIXES = ("_scale_inv", "_scale", "")
WHERE = ("modules_to_not_convert", "ignored_layers", "modules_in_block_to_quantize", "lm_head", "exclude")
# How a model was quantised, or how others compute with it.
HARMLESS = (
    *("quant_method", "quantizer", "version", "meta", "dataset", "tokenizer", "batch_size", "backend", "producer"),
    *("damp_percent", "damp_auto_increment", "true_sequential", "static_groups", "model_seqlen", "mse", "desc_act"),
    *("block_name_to_quantize", "module_name_preceding_first_block", "pad_token_id", "max_input_length", "v2"),
    *("use_exllama", "exllama_config", "cache_block_outputs", "use_cuda_fp16", "disable_exllama", "act_group_aware"),
    *("model_name_or_path", "model_file_base_name", "fuse_max_seq_len", "do_fuse", "modules_to_fuse", "hyb_act"),
)
ACTIVATIONS = ("activation_scheme", "activation_scale_ub", "scale_fmt", "kv_cache_scheme", "kv_cache_quant_algo")


def read_scheme(fields: Fields) -> Scheme | None:
    """Of a config.json; None where nothing is quantised. Raises ModelFileError for what is not understood."""
    if fields.has("quantization"):
        raise fields.error("quantization = … is MLX's way, which is not read: use the folder that it was made from")
    if not fields.has("quantization_config"):
        return None
    section = fields.section("quantization_config")
    method = section.text("quant_method", "compressed-tensors" if section.has("config_groups") else "")
    if method == "bitsandbytes":
        reason = "bitsandbytes quantises with tables of its own while it loads"
        raise fields.error(
            f"{reason}, which is not supported: use the model's own folder, or another quantisation of it"
        )
    if method not in METHODS:
        named, names = repr(method) if method else "without a quant_method", ", ".join(METHODS)
        raise fields.error(f"the quantisation {named} is not supported in folders (supported: {names}; or a GGUF file)")
    return METHODS[method](section)


def _fp8(section: Fields) -> Scheme:
    choice(section, "fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    choice(section, "quant_algo", ("FP8",), "FP8")
    tile = section.items("weight_block_size") if section.has("weight_block_size") else None
    check_keys(section, (*WHERE, *HARMLESS, *ACTIVATIONS))
    if tile is not None and (len(tile) != 2 or not all(isinstance(side, int) and side > 0 for side in tile)):
        raise section.error(f"weight_block_size must be two whole numbers over 0, not {tile!r}")

    def read(name: str, parts: Parts) -> Weight:
        from polyfleet.loading.quantised.tensors import read_fp8

        return read_fp8(name, parts, tile)

    return Scheme("fp8", ("_scale_inv", "_scale"), FP8_SUFFIXES, read)


def _gptq(section: Fields) -> Scheme:
    bits, group = choice(section, "bits", (4, 8)), section.count("group_size", 128, minimum=-1)
    choice(section, "pack_dtype", ("int32",), "int32")
    stated = choice(section, "checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    symmetric = section.flag("sym", True)
    if section.has("dynamic") and any(not name.startswith("-:") for name in section.section("dynamic").values):
        raise section.error("dynamic gives some modules a quantisation of their own, which is not supported")
    section.read.add("dynamic")
    check_keys(section, (*WHERE, *HARMLESS))
    more = 1 if stated == "gptq" else 0  # what zeros are more than is stored

    def read(name: str, parts: Parts) -> Weight:
        from polyfleet.loading.quantised.words import read_gptq

        return read_gptq(name, parts, bits, group, symmetric=symmetric, more=more)

    return Scheme("gptq", (".qweight",), COLUMNS_FIRST, read, ".weight")


def _awq(section: Fields) -> Scheme:
    bits = choice(section, "bits" if section.has("bits") or not section.has("w_bit") else "w_bit", (4,), 4)
    group = section.count("group_size" if section.has("group_size") else "q_group_size", 128, minimum=-1)
    choice(section, "version", ("gemm", "GEMM"), "gemm")
    section.flag("zero_point", True)
    check_keys(section, (*WHERE, *HARMLESS))

    def read(name: str, parts: Parts) -> Weight:
        from polyfleet.loading.quantised.words import read_awq

        return read_awq(name, parts, bits, group)

    return Scheme("awq", (".qweight",), COLUMNS_FIRST, read, ".weight")


def _mxfp4(section: Fields) -> Scheme:
    check_keys(section, (*WHERE, *HARMLESS))

    def read(name: str, parts: Parts) -> Weight:
        from polyfleet.loading.quantised import mxfp4

        return mxfp4.of_folder(name, parts["_blocks"], part(parts, "_scales"))

    return Scheme("mxfp4", ("_blocks",), ("_blocks", "_scales"), read)


METHODS: Mapping[str, Callable[[Fields], Scheme]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "modelopt": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": read_compressed,
    "mxfp4": _mxfp4,
}
