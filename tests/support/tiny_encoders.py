"""A tiny random checkpoint of every encoder, by transformers, with a tokenizer and sentence-transformers' files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

LAYERS, CONTEXT = 3, 64
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefgh"))
VOCABULARY = len(WORDS) + 5  # rows that no token has, as some models pad them
COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "initializer_range": 0.2,
    "layer_norm_eps": 1e-6,
}


@dataclass(frozen=True, slots=True)
class TinyEncoder:
    """What transformers makes a checkpoint of."""

    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)  # beside COMMON
    gguf: str = ""  # architecture; none: no GGUF file of this one


ENCODERS: Mapping[str, TinyEncoder] = {
    "bert": TinyEncoder("bert", {}, "bert"),
    "bert, relu": TinyEncoder("bert", {"hidden_act": "relu", "type_vocab_size": 1}),
    "roberta": TinyEncoder("xlm-roberta", {"pad_token_id": 1, "type_vocab_size": 1}),
    "nomic_bert": TinyEncoder("nomic_bert", {}, "nomic-bert"),
}


CROSS_ENCODERS: Mapping[str, TinyEncoder] = {
    "bert_cross_encoder": TinyEncoder("bert"),
    "bert_cross_encoder, one type": TinyEncoder("bert", {"type_vocab_size": 1}),
    "roberta_cross_encoder": TinyEncoder("xlm-roberta", {"pad_token_id": 1, "type_vocab_size": 1}),
}


def make_cross_encoder(tiny: TinyEncoder, folder: Path, *, labels: int = 1, **config: Any) -> Any:
    """Write a folder and return transformers' model."""
    import transformers

    torch.manual_seed(7)
    shape = transformers.AutoConfig.for_model(tiny.kind, **{**COMMON, **tiny.config, **config, "num_labels": labels})
    model = _with_norms(transformers.AutoModelForSequenceClassification.from_config(shape).float().eval())
    model.save_pretrained(folder)
    made = tokenizer()
    if tiny.kind != "bert":
        made.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"}))
    return model


def _with_norms(model: Any) -> Any:
    """With norms and biases that count."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def make(tiny: TinyEncoder, folder: Path, pooling: str = "mean_tokens", *, normalize: bool = True) -> Any:
    """Write a folder and return transformers' model."""
    import transformers

    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(tiny.kind, **{**COMMON, **tiny.config})
    model = _with_norms(transformers.AutoModel.from_config(config).float().eval())
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"}))
    add_modules(folder, pooling, normalize=normalize)
    return model


def tokenizer() -> Tokenizer:
    """Letters, and a few that go on with a word."""
    made = Tokenizer(models.WordPiece({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def add_modules(folder: Path, pooling: str, *, normalize: bool, longest: int = 0) -> None:
    """What sentence-transformers writes beside a model."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalize else ())]
    modules = [
        {"idx": at, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {
        f"pooling_mode_{each}": each == pooling for each in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    if longest:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))


_GGUF = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}
_GGUF_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
}


def write_gguf(tiny: TinyEncoder, model: Any, path: Path, *, pooling: int = 1) -> None:
    """As llama.cpp's converter would; of a cross encoder of RoBERTa's kind, too."""
    writer, prefix = gguf.GGUFWriter(str(path), tiny.gguf), tiny.gguf
    numbers = {"context_length": CONTEXT, "embedding_length": 64, "block_count": LAYERS, "pooling_type": pooling}
    numbers |= {"feed_forward_length": 96, "attention.head_count": 4}
    for key, value in numbers.items():
        writer.add_uint32(f"{prefix}.{key}", value)
    writer.add_bool(f"{prefix}.attention.causal", False)
    writer.add_float32(f"{prefix}.attention.layer_norm_epsilon", 1e-6)
    if tiny.gguf == "nomic-bert":
        writer.add_float32(f"{prefix}.rope.freq_base", 1000.0)
    _write_tokenizer(writer)
    first = model.config.pad_token_id + 1 if model.config.model_type == "xlm-roberta" else 0
    state = {name.removeprefix("roberta."): tensor for name, tensor in model.state_dict().items()}
    for name, tensor in _tensors(state, first):
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_tokenizer(writer: Any) -> None:
    """WordPiece: words begin with a phantom space, what goes on with them has lost its number signs."""

    def spelled(word: str) -> str:
        return word if word.startswith("[") else word.removeprefix("##") if word.startswith("##") else f"▁{word}"

    writer.add_tokenizer_model("bert")
    writer.add_token_list([spelled(word) for word in WORDS])
    writer.add_token_types([3 if word.startswith("[") else 1 for word in WORDS])
    ids = {"padding": 0, "unknown": 1, "cls": 2, "seperator": 3, "mask": 4}
    for name, token_id in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)


def _tensors(state: Mapping[str, torch.Tensor], first_position: int) -> Any:
    fused: dict[str, list[torch.Tensor]] = {}
    for name, tensor in state.items():
        stem, _, kind = name.rpartition(".")
        if stem in _GGUF:
            yield f"{_GGUF[stem]}.{kind}", tensor[first_position if "position" in stem else 0 :]
        elif stem.startswith(("encoder.layer.", "layers.")):
            layer, _, rest = stem.removeprefix("encoder.layer.").removeprefix("layers.").partition(".")
            if rest.startswith("self_attn.") and rest[10:] in ("q_proj", "k_proj", "v_proj"):
                fused.setdefault(layer, []).append(tensor)
            else:
                yield f"blk.{layer}.{_GGUF_LAYER[rest]}.{kind}", tensor
    for layer, parts in fused.items():
        yield f"blk.{layer}.attn_qkv.weight", torch.cat(parts)
