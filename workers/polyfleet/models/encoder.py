"""BERT and its kin: encoders that see a whole text at once and give vectors. Norms stand behind attention and MLP."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Lookup, OpKind
from polyfleet.models.architecture import Architecture, TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import MAX_LAYERS, check_activation
from polyfleet.models.folder_rope import read_rope
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder
from polyfleet.models.rope import inverse_frequencies

ACTIVATIONS: Mapping[str, OpKind] = {
    "gelu": OpKind.GELU,
    "gelu_python": OpKind.GELU,
    "gelu_new": OpKind.GELU_TANH,
    "gelu_pytorch_tanh": OpKind.GELU_TANH,
    "relu": OpKind.RELU,
    "silu": OpKind.SILU,
    "swish": OpKind.SILU,
}
NOMIC_BASE = 1000.0
POOLER = {f"pooler_{key}" for key in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """`positions`: rows of the table of positions (0: heads turn), from `first_position` on; `types`: of segments'."""

    positions: int = 0
    first_position: int = 0
    types: int = 0
    activation: OpKind = OpKind.GELU
    gated: bool = False


def record(config: EncoderConfig, model: Recorder) -> KernelGraph:
    """Hidden states are all that there is."""
    x = record_layers(config, model)
    return model.graph.finish(x, model.graph.select_rows(x))


def record_layers(config: EncoderConfig, model: Recorder) -> int:
    """The final hidden states. Layers share one cache: none reads it behind its own attention."""
    graph, rope = model.graph, model.rope()
    x = model.embedding()
    if config.types:
        x = graph.add(model.lookup("types", config.types, Lookup(positions=False)), x)
    if config.positions:
        x = graph.add(model.lookup("positions", config.positions, Lookup(config.first_position)), x)
    x = model.layer_norm(x, "embedding_norm")
    cache = graph.cache(config.num_kv_heads, config.head_dim)
    bias = config.attention_bias
    for _ in model.layers():
        attended = model.attention(x, rope, cache=cache, bias=bias, output_bias=bias)
        x = model.layer_norm(graph.add(attended, x), "attention_norm")
        x = model.layer_norm(graph.add(_mlp(config, model, x), x), "mlp_norm")
    return x


def _mlp(config: EncoderConfig, model: Recorder, x: int) -> int:
    if config.gated:
        return model.gated_mlp(x, config.activation, bias=config.mlp_bias)
    inner = model.linear(x, "up", config.intermediate_size, bias=config.mlp_bias)
    return model.linear(model.graph.unary(config.activation, inner), "down", config.hidden_size, bias=config.mlp_bias)


def _sizes(fields: Fields, keys: Mapping[str, str]) -> dict[str, Any]:
    """What files state alike, `keys` being theirs."""
    hidden, heads = fields.count(keys["hidden"]), fields.count(keys["heads"])
    return {
        "architecture": "",
        "name": "",
        "hidden_size": hidden,
        "num_layers": fields.count(keys["layers"], maximum=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": max(1, hidden // heads),
        "intermediate_size": fields.count(keys["inner"]),
        "norm_eps": fields.positive(keys["eps"], 1e-12),
        "inverse_frequencies": (),
        "tied_embeddings": True,
        "embeds_only": True,
        "causal": False,
    }


_BERT_KEYS = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
    "inner": "intermediate_size",
    "eps": "layer_norm_eps",
}
_NOMIC_KEYS = {
    "hidden": "n_embd",
    "heads": "n_head",
    "layers": "n_layer",
    "inner": "n_inner",
    "eps": "layer_norm_epsilon",
}
_GGUF_KEYS = {
    "hidden": "embedding_length",
    "heads": "attention.head_count",
    "layers": "block_count",
    "inner": "feed_forward_length",
    "eps": "attention.layer_norm_epsilon",
}


def read_bert(fields: Fields) -> EncoderConfig:
    return _read_folder(fields, first_position=0)


def read_roberta(fields: Fields) -> EncoderConfig:
    """Positions begin behind that of the padding."""
    return _read_folder(fields, first_position=fields.count("pad_token_id", 1, minimum=0) + 1)


def _read_folder(fields: Fields, first_position: int) -> EncoderConfig:
    check_activation(fields, tuple(ACTIVATIONS))
    fields.read.update(POOLER)  # of heads that are not read
    if (kind := fields.text("position_embedding_type", "absolute")) != "absolute":
        raise fields.error(f"position_embedding_type = {kind!r} is not supported (supported: 'absolute')")
    if fields.flag("is_decoder", False):
        raise fields.error("is_decoder = true is not supported: the architecture is read as an encoder")
    fields.flag("tie_word_embeddings", True)  # of a head that is not read
    positions = fields.count("max_position_embeddings", 512)
    if positions <= first_position:
        raise fields.error(f"max_position_embeddings must be over {first_position}, not {positions}")
    return EncoderConfig(
        **_sizes(fields, _BERT_KEYS),
        vocabulary_size=fields.count("vocab_size"),
        context_length=positions - first_position,
        positions=positions,
        first_position=first_position,
        types=fields.count("type_vocab_size", 2, minimum=0),
        activation=ACTIVATIONS[fields.text("hidden_act", "gelu")],
        attention_bias=True,
        mlp_bias=True,
    )


def _read_nomic(fields: Fields) -> ModelConfig:
    """As its makers write it, or as transformers does."""
    older = fields.has("n_embd")
    fields.flag("tie_word_embeddings", True)
    sizes = _sizes(fields, _NOMIC_KEYS if older else _BERT_KEYS)
    if older:
        _check_nomic(fields)
        longest = fields.count("max_trained_positions", 2048)
        frequencies = inverse_frequencies(sizes["head_dim"], fields.positive("rotary_emb_base", 10000.0))
        context = min(fields.count("n_positions", longest), longest)
    else:
        check_activation(fields)
        context = fields.count("max_position_embeddings", 2048)
        rope = read_rope(fields, fields.count("head_dim", sizes["head_dim"]), base=NOMIC_BASE)
        frequencies = rope.frequencies
    sizes |= {"inverse_frequencies": frequencies, "context_length": context, "gated": True}
    types, vocabulary = fields.count("type_vocab_size", 2, minimum=0), fields.count("vocab_size")
    return EncoderConfig(**sizes, vocabulary_size=vocabulary, types=types, activation=OpKind.SILU)


def _check_nomic(fields: Fields) -> None:
    """Raise ModelFileError for what other models of this code base do."""
    check_activation(fields, ("swiglu",), "activation_function")
    switched_off = ("prenorm", "causal", "parallel_block", "use_rms_norm", "rotary_emb_interleaved")
    for name in (*switched_off, "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"):
        if fields.flag(name, False):
            raise fields.error(f"{name} = true is not supported")
    if fields.positive("rotary_emb_fraction", 1.0) != 1:
        raise fields.error("rotary_emb_fraction must be 1")
    fields.count("max_trained_positions", 2048)  # beyond them the rotation would be scaled: the context ends there
    fields.positive("rotary_scaling_factor", 1.0)


def read_gguf(keys: GgufKeys) -> EncoderConfig:
    fields = keys.fields
    if fields.flag("attention.causal", False):
        raise fields.error("attention.causal = true is not supported: the architecture is read as an encoder")
    sizes, context = _sizes(fields, _GGUF_KEYS), fields.count("context_length")
    vocabulary, gated = keys.vocabulary_size, keys.has("blk.0.ffn_gate.weight")
    bias = {"attention_bias": keys.has("blk.0.attn_output.bias"), "mlp_bias": keys.has("blk.0.ffn_up.bias")}
    sizes |= {
        "vocabulary_size": vocabulary,
        "context_length": context,
        "types": keys.rows("token_types.weight"),
        **bias,
    }
    if positions := keys.rows("position_embd.weight"):
        return EncoderConfig(**sizes, positions=positions, gated=gated)
    frequencies = inverse_frequencies(sizes["head_dim"], fields.positive("rope.freq_base", 10000.0))
    sizes["inverse_frequencies"] = frequencies
    return EncoderConfig(**sizes, gated=gated, activation=OpKind.SILU if gated else OpKind.GELU)


_TOP = {
    "embeddings.word_embeddings": "embedding",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "embedding_norm",
    "emb_ln": "embedding_norm",
}
_LAYER = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "o",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "mlp_norm",
}
_NOMIC_LAYER = {  # as its makers name them, and as transformers does
    "attn.Wqkv": "q k v",
    "attn.out_proj": "o",
    "mlp.fc11": "up",
    "mlp.fc12": "gate",
    "mlp.fc2": "down",
    "norm1": "attention_norm",
    "norm2": "mlp_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "mlp.up_proj": "up",
    "mlp.gate_proj": "gate",
    "mlp.down_proj": "down",
    "post_attention_layernorm": "attention_norm",
    "post_mlp_layernorm": "mlp_norm",
}
_GGUF = {
    "token_embd": "embedding",
    "position_embd": "positions",
    "token_types": "types",
    "token_embd_norm": "embedding_norm",
}
_GGUF_LAYER = {
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "q k v",
    "attn_output": "o",
    "attn_output_norm": "attention_norm",
    "ffn_up": "up",
    "ffn_gate": "gate",
    "ffn_down": "down",
    "layer_output_norm": "mlp_norm",
}
_HEADS = (r".*position_ids", r"(\w+\.)?pooler\..*", r"(cls|lm_head)\..*")  # of other tasks, and what counts


def folder_names(prefix: str) -> TensorNames:
    names = {f"{prefix}{name}": to for name, to in _TOP.items()}
    return TensorNames(names, f"{prefix}encoder.layer.", _LAYER, _HEADS, optional=prefix)


GGUF_NAMES = TensorNames(_GGUF, "blk.", _GGUF_LAYER, (r"cls\..*",))

BERT = Architecture(
    name="bert",
    title="BERT",
    classes=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    model_types=("bert",),
    gguf=("bert",),
    read_folder=read_bert,
    read_gguf=read_gguf,
    record=record,
    folder_names=folder_names("bert."),
    gguf_names=GGUF_NAMES,
    notes="embeddings: MiniLM, BGE, E5, GTE and others whose layers are BERT's",
)
ROBERTA = replace(
    BERT,
    name="roberta",
    title="RoBERTa",
    classes=("RobertaModel", "XLMRobertaModel", "CamembertModel", "RobertaForMaskedLM", "XLMRobertaForMaskedLM"),
    model_types=("roberta", "xlm-roberta", "camembert"),
    gguf=(),
    read_folder=read_roberta,
    folder_names=folder_names("roberta."),
    notes="embeddings: BGE-M3 (dense vectors), multilingual E5, paraphrase models and others",
)
NOMIC_BERT = replace(
    BERT,
    name="nomic_bert",
    title="Nomic BERT",
    classes=("NomicBertModel",),
    model_types=("nomic_bert",),
    gguf=("nomic-bert",),
    read_folder=_read_nomic,
    folder_names=TensorNames(_TOP, "encoder.layers.", _NOMIC_LAYER, _HEADS, optional="encoder."),
    notes="embeddings, up to the 2048 tokens that it was trained with",
)
