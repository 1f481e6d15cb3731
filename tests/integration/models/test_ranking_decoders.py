"""Decoders that rank by the logits of yes and no, as Qwen3-Reranker does, against transformers in float32."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_tokenizers import byte_characters, tokenizer_json

from polyfleet.engine.engine import Engine
from polyfleet.loading.folder.ranking import TEMPLATE
from polyfleet.loading.load import load_model
from polyfleet.models.errors import ModelFileError
from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest

TOLERANCES = {"eager": 1e-6, "persistent": 3e-3}
NAMES = ["<|im_start|>", "<|im_end|>", *byte_characters(), "no", "ye", "yes", "Ġa", "es"]
YES, NO = NAMES.index("yes"), NAMES.index("no")
QUERY, DOCUMENTS = "a <|im_end|> yes", ("no", "yes <|im_start|>", " a" * 999)
TINY_QWEN = replace(
    TINY["qwen3"], config={"vocab_size": len(NAMES) + 5, "max_position_embeddings": 640, "head_dim": 32}
)
CONTEXT = 640


def write(folder: Path) -> Any:
    model = make(TINY_QWEN, folder)
    definition = tokenizer_json()
    definition["model"] |= {
        "vocab": {name: at for at, name in enumerate(NAMES)},
        "merges": [["n", "o"], ["y", "e"], ["ye", "s"], ["Ġ", "a"], ["e", "s"]],
    }
    special = definition["added_tokens"]
    definition |= {"post_processor": None, "added_tokens": [{**special[at], "content": NAMES[at]} for at in (0, 1)]}
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    return model


def expected_prompt(folder: Path, document: str) -> list[int]:
    """As the model card has it, but what users spell is text; the document is cut where the context ends."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    before, _, behind = TEMPLATE.partition("<Query>")

    def ids(text: str, *, plain: bool) -> list[int]:
        tokenizer.encode_special_tokens = plain
        found: list[int] = tokenizer.encode(text).ids
        return found

    end = behind.partition("{document}")[2]
    middle = ids(f"<Query>: {QUERY}\n<Document>: {document}", plain=True)
    first, last = ids(before, plain=False), ids(end, plain=False)
    return [*first, *middle[: CONTEXT - len(first) - len(last)], *last]


def score(folder: Path, executor: str, prompts: list[list[int]]) -> list[float]:
    dtype = "float32" if executor == "eager" else "auto"
    options = EngineOptions(device="cpu", executor=executor, dtype=dtype, threads=1, step_tokens=100)
    engine = Engine.load(str(folder), replace(options, max_sequences=2, kv_cache_tokens=1500))
    assert (engine.facts.cross_encoder, engine.facts.pooling) == (True, Pooling.LAST)
    for at, ids in enumerate(prompts):
        engine.add(SequenceRequest(str(at), tuple(ids), pooling=Pooling.LAST))
    found: dict[str, float] = {}
    while engine.has_work:
        for update in engine.step():
            assert not update.error
            if update.embedding:
                (found[update.sequence_id],) = update.embedding
    engine.close()
    return [found[str(at)] for at in range(len(prompts))]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("models") / "Qwen3-Reranker-tiny"
    return folder, write(folder)


def test_scores_are_how_likely_yes_is(made: tuple[Path, Any]) -> None:
    folder, model = made
    assets = load_model(folder).tokenizer
    assert assets is not None
    text = PromptText(assets.document)
    prompts = [text.encode_document(document, CONTEXT, query=QUERY).token_ids for document in DOCUMENTS]
    assert prompts == [expected_prompt(folder, document) for document in DOCUMENTS]
    assert len(text.encode_document(DOCUMENTS[2], CONTEXT, 7, query=QUERY).token_ids) == len(prompts[0]) - 1 + 7
    with pytest.raises(FieldError, match=r"query: .* leaves no room for a document"):
        text.encode_document("no", CONTEXT, query="q" * 400)
    with torch.inference_mode():
        logits = [model(torch.tensor([ids])).logits[0, -1].double() for ids in prompts]
    wanted = [torch.softmax(each[[NO, YES]], -1)[1].item() for each in logits]
    for executor, tolerance in TOLERANCES.items():
        assert score(folder, executor, prompts) == pytest.approx(wanted, abs=tolerance)


def test_folders_that_say_so_by_their_modules(made: tuple[Path, Any], tmp_path: Path) -> None:
    """As sentence-transformers writes them: the tokens, and what is behind their difference."""
    folder = tmp_path / "other"
    folder.mkdir()
    for file in made[0].iterdir():
        (folder / file.name).symlink_to(file)
    assert not load_model(folder).config.cross_encoder
    modules = [{"path": "", "type": "a.Transformer"}, {"path": "1_LogitScore", "type": "b.LogitScore"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    stated = folder / "1_LogitScore" / "config.json"
    stated.write_text(json.dumps({"true_token_id": YES, "false_token_id": NO}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"activation_fn": "torch.nn.Identity"}))
    found = load_model(folder)
    assert (found.config.score_tokens, found.config.bounded) == ((YES, NO), False)
    table = found.weights["embedding" if found.config.tied_embeddings else "norm"]
    assert table.rows
    for tokens, reason in (((YES, None), "known of Qwen3-Reranker alone"), ((99999, NO), "one is not there")):
        stated.write_text(json.dumps(dict(zip(("true_token_id", "false_token_id"), tokens, strict=True))))
        with pytest.raises(ModelFileError, match=reason):
            load_model(folder)


def write_gguf(path: Path, folder: Path, template: str = TEMPLATE, labels: tuple[str, ...] = ("yes", "no")) -> None:
    """As llama.cpp's converter does: the head's rows of yes and no alone."""
    loaded = load_model(folder)
    config, writer = loaded.config, gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels(list(labels))
    writer.add_string("tokenizer.chat_template.rerank", template)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(NAMES)
    writer.add_token_types([3, 3, *[1] * (len(NAMES) - 2)])
    writer.add_token_merges(["n o", "y e", "ye s", "Ġ a", "e s"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_layers)
    from safetensors.numpy import load_file

    for name, tensor in load_file(folder / "model.safetensors").items():
        stem, _, kind = name.rpartition(".")
        if stem == "lm_head":
            writer.add_tensor("cls.output.weight", np.stack([tensor[YES], tensor[NO]]))
        else:
            writer.add_tensor(f"{names.get_name(stem)}.{kind}", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_files_hold_the_same(made: tuple[Path, Any], tmp_path: Path) -> None:
    path = tmp_path / "reranker.gguf"
    write_gguf(path, made[0])
    one, other = load_model(made[0]), load_model(path)
    assert one.tokenizer is not None
    assert other.tokenizer is not None
    assert other.config.score_tokens == one.config.score_tokens
    assert torch.equal(one.weights["score"].data, other.weights["score"].data)
    one_text, other_text = (PromptText(each.document) for each in (one.tokenizer, other.tokenizer))
    mine, theirs = (each.encode_document("yes no", CONTEXT, query=QUERY) for each in (one_text, other_text))
    assert mine == theirs
    write_gguf(path, made[0], template="{document} {query}")
    with pytest.raises(ModelFileError, match=r"chat_template.rerank must hold {query}, and {document} behind it"):
        load_model(path)
    write_gguf(path, made[0], labels=("good", "bad"))
    with pytest.raises(ModelFileError, match=r"its head tells 2 labels apart \['good', 'bad'\]"):
        load_model(path)
