"""Cross encoders against transformers, in float32: scores of pairs, as the model's own tokenizer puts them together."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiny_encoders import CROSS_ENCODERS, make_cross_encoder, write_gguf

from polyfleet.engine import Embedder
from polyfleet.engine.engine import Engine
from polyfleet.loading.load import load_model
from polyfleet.models.errors import ModelFileError
from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest

TOLERANCES = {"eager": 1e-6, "persistent": 2e-3}  # the CPU library's cache has half precision
QUERY, DOCUMENTS = "a dead cab", ("bad", "a face he fed a cab", "cab dead a " * 30)


def expected(model: Any, folder: Path, longest: int) -> list[float]:
    """As sentence-transformers: pairs by the folder's tokenizer, the document cut, a sigmoid behind the head."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    scores = []
    for document in DOCUMENTS:
        cut = {"truncation": "only_second", "max_length": longest}
        pair = tokenizer(QUERY, document, **cut, return_tensors="pt", return_token_type_ids=True)
        if model.config.type_vocab_size == 1:
            pair["token_type_ids"].zero_()
        with torch.inference_mode():
            scores.append(torch.sigmoid(model(**pair).logits.double()).item())
    return scores


@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_scores_equal_transformers(name: str, tmp_path: Path) -> None:
    model = make_cross_encoder(CROSS_ENCODERS[name], tmp_path)
    assets = load_model(tmp_path).tokenizer
    assert assets is not None
    text = PromptText(assets.document)
    for executor, tolerance in TOLERANCES.items():
        dtype = "float32" if executor == "eager" else "auto"
        options = EngineOptions(device="cpu", executor=executor, dtype=dtype, threads=1)
        engine = Engine.load(str(tmp_path), options)
        assert (engine.facts.cross_encoder, engine.facts.pooling) == (True, Pooling.CLS)
        longest = engine.facts.context_length
        for at, document in enumerate(DOCUMENTS):
            ids, start = text.encode_document(document, longest, query=QUERY)
            engine.add(SequenceRequest(str(at), tuple(ids), pooling=Pooling.CLS, segment_start=start))
        found: dict[str, float] = {}
        while engine.has_work:
            for update in engine.step():
                assert not update.error
                (found[update.sequence_id],) = update.embedding
        wanted = expected(model, tmp_path, longest)
        assert [found[str(at)] for at in range(len(DOCUMENTS))] == pytest.approx(wanted, abs=tolerance)
        with pytest.raises(FieldError, match="segment_start: must be from 0 to 2"):
            engine.add(SequenceRequest("x", (2, 3), pooling=Pooling.CLS, segment_start=3))
        engine.close()
    with pytest.raises(ValueError, match="is a cross encoder, which makes no embeddings"):
        Embedder(str(tmp_path), device="cpu", threads=1)


def test_gguf_files_of_cross_encoders(tmp_path: Path) -> None:
    """The same model as its folder, and the same pairs of texts; llama.cpp's converter leaves out BERT's pooler."""
    tiny = replace(CROSS_ENCODERS["roberta_cross_encoder"], gguf="bert")
    folder, file = tmp_path / "folder", tmp_path / "model.gguf"
    made = make_cross_encoder(tiny, folder)
    write_gguf(tiny, made, file, pooling=4)
    one, other = load_model(folder), load_model(file)
    assert other.config.cross_encoder
    assert one.weights.keys() - other.weights.keys() == set()
    for name in one.weights.keys() - {"positions"}:
        torch.testing.assert_close(one.weights[name].data, other.weights[name].data)
    assert torch.equal(other.weights["positions"].data, one.weights["positions"].data[2:])
    assert one.tokenizer is not None
    assert other.tokenizer is not None
    texts = [PromptText(each.document) for each in (one.tokenizer, other.tokenizer)]
    mine, theirs = (each.encode_document("bad", 64, query=QUERY).token_ids for each in texts)
    assert len(mine) == len(theirs) + 1, "of two ends WordPiece, which this file has, writes one"
    state = {name: tensor for name, tensor in made.state_dict().items() if ".dense" not in name or "roberta" in name}
    made.state_dict = lambda: state
    write_gguf(tiny, made, file, pooling=4)
    with pytest.raises(ModelFileError, match=r"its converter left out what its head reads \(cls.weight\)"):
        load_model(file)


@pytest.mark.parametrize(
    ("labels", "config", "reason"),
    [
        (3, {}, "its head tells 3 labels apart; supported are heads with one"),
        (1, {"sbert_ce_default_activation_function": "torch.nn.Softmax"}, "the activation 'torch.nn.Softmax'"),
        (1, {"sentence_transformers": {"activation_fn": "x.Tanh"}}, "the activation 'x.Tanh' of its scores"),
    ],
)
def test_heads_that_are_not_supported(tmp_path: Path, labels: int, config: dict[str, Any], reason: str) -> None:
    make_cross_encoder(CROSS_ENCODERS["bert_cross_encoder"], tmp_path, labels=labels, **config)
    with pytest.raises(ModelFileError, match=reason):
        load_model(tmp_path)


def test_scores_without_bounds_and_pairs_that_nobody_describes(tmp_path: Path) -> None:
    activation = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}
    make_cross_encoder(CROSS_ENCODERS["bert_cross_encoder"], tmp_path, sentence_transformers=activation)
    assert load_model(tmp_path).config.bounded is False
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(document | {"post_processor": None}))
    with pytest.raises(ModelFileError, match="does not say how two texts are put together"):
        load_model(tmp_path)
