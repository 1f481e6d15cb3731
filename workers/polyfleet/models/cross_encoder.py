"""Cross encoders: encoders that read a query and a document together and give one number, by which documents rank."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models.architecture import Architecture, TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.encoder import (
    BERT,
    ROBERTA,
    EncoderConfig,
    folder_names,
    read_bert,
    read_roberta,
    record_layers,
)
from polyfleet.models.fields import Fields
from polyfleet.models.recorder import Recorder
from polyfleet.wire.requests import Pooling

TANH = 1.0  # the cap of a soft cap that is just tanh
ACTIVATIONS = {"Sigmoid": True, "Identity": False}  # of what the head gives, by torch's names
POSITION_IDS = r".*position_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEncoderConfig(EncoderConfig):
    """`bounded`: whether scores are taken to 0 … 1 by a sigmoid."""

    bounded: bool = True


def record(config: CrossEncoderConfig, model: Recorder) -> KernelGraph:
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
        return CrossEncoderConfig(**known, bounded=_bounded(fields))

    return read_folder


def _check_labels(fields: Fields) -> None:
    """Raise ModelFileError unless the head gives one number: transformers' default are two."""
    labels = len(fields.section("id2label").values) if fields.has("id2label") else fields.count("num_labels", 2)
    if labels != 1:
        raise fields.error(f"its head tells {labels} labels apart; supported are heads with one, which rank documents")


def _bounded(fields: Fields) -> bool:
    """As sentence-transformers writes it, in one of two places; a sigmoid where nothing is said."""
    stated = fields.text("sbert_ce_default_activation_function", "Sigmoid")
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
    gguf=(),
    read_folder=_reader(read_bert),
    record=record,
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
    folder_names=_names("roberta.", "classifier.dense", "classifier.out_proj"),
    notes=f"{NOTES}, as BGE-Reranker and others",
)
