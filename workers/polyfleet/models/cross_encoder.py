"""Cross encoders: encoders that read a query and a document together and give one number, by which documents rank."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models.architecture import Architecture, TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.encoder import (
    BERT,
    GGUF_NAMES,
    ROBERTA,
    EncoderConfig,
    folder_names,
    read_bert,
    read_gguf,
    read_roberta,
    record_layers,
)
from polyfleet.models.fields import Fields
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder
from polyfleet.wire.requests import Pooling

TANH = 1.0  # the cap of a soft cap that is just tanh
ACTIVATIONS = {"Sigmoid": True, "Identity": False}  # of what the head gives, by torch's names
POSITION_IDS = r".*position_ids"


def record(config: EncoderConfig, model: Recorder) -> KernelGraph:
    """The head is computed for all rows, of which the first one's result is wanted."""
    graph, x = model.graph, record_layers(config, model)
    x = graph.soft_cap(model.linear(x, "pooler", config.hidden_size, bias=True), TANH)
    score = model.linear(x, "score", 1, bias=True)
    score = graph.unary(OpKind.SIGMOID, score) if config.bounded else score
    return graph.finish(score, graph.select_rows(score))


def _reader(read: Callable[[Fields], EncoderConfig]) -> Callable[[Fields], ModelConfig]:
    def read_folder(fields: Fields) -> ModelConfig:
        _check_labels(fields)
        config = read(fields)
        known: dict[str, Any] = {name: getattr(config, name) for name in EncoderConfig.__dataclass_fields__}
        # What tells segments apart lies in the embedding: a row for each token in each of them.
        known |= {"cross_encoder": True, "pooling": Pooling.CLS, "segments": max(1, config.types)}
        return EncoderConfig(**known | {"bounded": read_bounded(fields)})

    return read_folder


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    """llama.cpp's converter leaves out BERT's pooler, without which its head means nothing; RoBERTa's is there."""
    labels = keys.fields.items("classifier.output_labels") if keys.fields.has("classifier.output_labels") else []
    if (found := keys.rows("cls.output.weight")) != 1:
        raise keys.fields.error(f"its head tells {found} labels apart {labels}; supported are heads with one")
    if not keys.has("cls.weight"):
        raise keys.fields.error("its converter left out what its head reads (cls.weight): use the model's folder")
    config = read_gguf(keys)
    return replace(config, cross_encoder=True, segments=max(1, config.types))


def _check_labels(fields: Fields) -> None:
    """Raise ModelFileError unless the head gives one number: transformers' default are two."""
    labels = len(fields.section("id2label").values) if fields.has("id2label") else fields.count("num_labels", 2)
    if labels != 1:
        raise fields.error(f"its head tells {labels} labels apart; supported are heads with one, which rank documents")


def read_bounded(fields: Fields) -> bool:
    """As sentence-transformers writes it, in one of two places; a sigmoid where nothing is said."""
    stated = fields.text("sbert_ce_default_activation_function", "Sigmoid")
    stated = fields.text("activation_fn", stated)
    if fields.has("sentence_transformers"):
        stated = fields.section("sentence_transformers").text("activation_fn", stated)
    name = stated.rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise fields.error(f"the activation {stated!r} of its scores is not supported (supported: Identity, Sigmoid)")
    return ACTIVATIONS[name]


def _names(prefix: str, pooler: str, score: str) -> TensorNames:
    inner = folder_names(prefix)
    return replace(inner, names={**inner.names, pooler: "pooler", score: "score"}, ignored=(POSITION_IDS,))


NOTES = "cross encoders: they rank documents"
BERT_CROSS_ENCODER = replace(
    BERT,
    name="bert_cross_encoder",
    title="BERT, cross encoders",
    classes=("BertForSequenceClassification",),
    model_types=(),
    read_folder=_reader(read_bert),
    read_gguf=_read_gguf,
    record=record,
    gguf_names=replace(GGUF_NAMES, names={**GGUF_NAMES.names, "cls": "pooler", "cls.output": "score"}, ignored=()),
    ranks=True,
    folder_names=_names("bert.", "bert.pooler.dense", "classifier"),
    notes=f"{NOTES}, as MS MARCO's MiniLM and TinyBERT",
)
ROBERTA_CROSS_ENCODER: Architecture = replace(
    ROBERTA,
    name="roberta_cross_encoder",
    title="RoBERTa, cross encoders",
    classes=(
        "RobertaForSequenceClassification",
        "XLMRobertaForSequenceClassification",
        "CamembertForSequenceClassification",
    ),
    model_types=(),
    read_folder=_reader(read_roberta),
    record=record,
    ranks=True,
    folder_names=_names("roberta.", "classifier.dense", "classifier.out_proj"),
    notes=f"{NOTES}, as BGE-Reranker and others",
)
