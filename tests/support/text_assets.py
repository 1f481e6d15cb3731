"""Small tokenizers for tests: a byte-level one, trained on a few lines, and a SentencePiece-like one by hand."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from polyfleet.text.model_text import ModelText
from polyfleet.wire.requests import Message

CORPUS = [
    "The quick brown fox jumps over the lazy dog and the other dogs.",
    "Größe, naïve façade: 日本語のテキスト, русский текст, 😀😃😄 and 👩‍👩‍👧.",
    "def main(): return {'a': [1, 2, 3]}  # code\n\twith tabs\n",
]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def byte_level_tokenizer() -> Tokenizer:
    """600 tokens at most; every byte has one; three special tokens and an added token that is not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False)])
    return tokenizer


@cache
def sentencepiece_like_tokenizer() -> Tokenizer:
    """Words with a leading U+2581, single letters, and a token for each byte."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for word in ["▁", "▁the", "▁quick", "▁fox", "▁日本", *"abcdefghijklmnopqrstuvwxyz日本é"]:
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@cache
def metaspace_tokenizer() -> Tokenizer:
    """Words with a leading U+2581 that the decoder itself turns into spaces; the first one is dropped."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for word in ["▁", "▁the", "▁fox", "▁日本", *"abcdefgh日本é."]:
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@cache
def wordpiece_tokenizer() -> Tokenizer:
    """Words, and parts of words behind `##`; punctuation loses the space before it."""
    vocab = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
    for word in ["the", "fox", "##es", "##y", "é", "日", ".", ",", "'", "s", "n't", "do", "a"]:
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    return tokenizer


@cache
def suffix_tokenizer() -> Tokenizer:
    """Words end with `</w>`, which is a space everywhere but at the end of the text."""
    vocab = {"<unk>": 0, "<s>": 1} | {word: 2 + i for i, word in enumerate(["the</w>", "fo", "x</w>", "é", "a</w>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


def assets_document(tokenizer: Tokenizer | None = None, **changes: Any) -> bytes:
    """A tokenizer assets document around `tokenizer` (default: the byte-level one); `changes` replace its keys."""
    chosen = tokenizer or byte_level_tokenizer()
    assets = {
        "tokenizer": json.loads(chosen.to_str()),
        "chat_template": CHATML,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "add_bos": False,
        "end_token_ids": [2],
    }
    return json.dumps(assets | changes).encode()


def render_chat(text: ModelText, messages: Sequence[Mapping[str, str]]) -> str:
    """A chat's prompt as text; each message has `role`, `content` and perhaps `name`."""
    return text.prompts.render_chat([Message(each["role"], each["content"], each.get("name", "")) for each in messages])
