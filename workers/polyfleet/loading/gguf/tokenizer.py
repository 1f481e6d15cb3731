"""From a GGUF file's tokenizer metadata to TokenizerAssets."""

from dataclasses import replace
from typing import Any

from polyfleet.loading.gguf.encoders import encoder_frame, unigram, wordpiece
from polyfleet.loading.gguf.metadata import check_tokenizer_metadata
from polyfleet.loading.gguf.ranking import gguf_template
from polyfleet.loading.gguf.vocabulary import (
    PREFIX,
    WHOLE,
    TokenType,
    Vocabulary,
    finite_numbers,
    gguf_end_tokens,
    read_vocabulary,
)
from polyfleet.loading.model import TokenizerAssets
from polyfleet.loading.sampling_defaults import SamplingDefaults, gguf_defaults, published_defaults
from polyfleet.loading.tokenizer.assets import make_assets
from polyfleet.loading.tokenizer.post_processor import Frame, post_processor
from polyfleet.loading.tokenizer.pretokenizers import PRE_TOKENIZERS, SPACE, PreTokenizer
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields

ENCODERS = {"bert": wordpiece, "t5": unigram}
RANKED = {"gpt2": "default", "whitespace": "default", "gemma4": "gemma4"}  # by merges; their usual pre-tokenizers
MODELS = ("llama", *RANKED, *ENCODERS)
SEPARATORS = {"bert": 1, "t5": 2}  # ends between two texts: BERT's, and XLM-RoBERTa's
TOOL_TEMPLATE = "tokenizer.chat_template.tool_use"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPELLING: tuple[dict[str, Any], ...] = (
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)
SPELLED = {"type": "Sequence", "decoders": list(SPELLING)}


def gguf_tokenizer(fields: Fields, config: ModelConfig) -> TokenizerAssets | None:
    """The tokenizer, or None for a file without one; raises ModelFileError for one that is broken or unknown."""
    model = fields.text(PREFIX + "model", "none")
    if model in ("none", "no_vocab"):
        return None
    if model not in MODELS:
        raise fields.error(f"the tokenizer model {model!r} is not supported (supported: {', '.join(MODELS)})")
    check_tokenizer_metadata(fields, model)
    vocabulary = read_vocabulary(fields, config.vocabulary_size)
    tokenizer, add_bos, frame = _read(fields, vocabulary, model)
    if config.cross_encoder and model in ENCODERS:
        frame = replace(frame, between=frame.after * SEPARATORS[model])
    template = fields.text("tokenizer.chat_template") if fields.has("tokenizer.chat_template") else None
    return make_assets(
        tokenizer=tokenizer | {"post_processor": post_processor(frame, vocabulary.tokens.__getitem__)},
        chat_template=template,
        tool_template=fields.text(TOOL_TEMPLATE) if fields.has(TOOL_TEMPLATE) else None,
        special_tokens=vocabulary.special_texts,
        add_bos=add_bos,
        end_token_ids=gguf_end_tokens(fields),
        sampling_defaults=_sampling_defaults(fields, config.vocabulary_size, template is not None),
        pair_template=gguf_template(fields, config),
    )


def _read(fields: Fields, vocabulary: Vocabulary, model: str) -> tuple[dict[str, Any], bool, Frame]:
    """The tokenizer without its post-processor, whether BOS begins a text, and what stands around it besides."""
    if model in ENCODERS:
        made = _tokenizer(vocabulary=vocabulary, **ENCODERS[model](fields, vocabulary))
        return (made, *encoder_frame(fields, vocabulary, model))
    if model in RANKED:
        pre = _pre_tokenizer(fields, model)
        add_bos, frame = _frame(fields, vocabulary, pre.add_bos)
        separator = vocabulary.special.get("sep_token", vocabulary.special.get("eos_token"))
        if pre.add_sep and not frame.after and separator is not None:
            frame = Frame(after=(separator,))
        return _ranked_bpe(fields, vocabulary, pre), add_bos, frame
    return (_sentencepiece_bpe(fields, vocabulary), *_frame(fields, vocabulary, True))


def _frame(fields: Fields, vocabulary: Vocabulary, default_bos: bool) -> tuple[bool, Frame]:
    """Whether BOS begins a text, and what stands around it besides."""
    wanted = {"bos": fields.flag(PREFIX + "add_bos_token", default_bos)}
    wanted["eos"] = fields.flag(PREFIX + "add_eos_token", False)
    for name, add in wanted.items():
        if add and fields.has(f"{PREFIX}add_{name}_token") and f"{name}_token" not in vocabulary.special:
            raise fields.error(f"{PREFIX}add_{name}_token is true, but {PREFIX}{name}_token_id is missing")
    return wanted["bos"], Frame(after=(vocabulary.special["eos_token"],) if wanted["eos"] else ())


def _sampling_defaults(fields: Fields, vocabulary_size: int, chats: bool) -> SamplingDefaults:
    names = [fields.text(key, "") for key in ("general.basename", "general.name")]
    return gguf_defaults(fields, vocabulary_size) or (published_defaults(*names) if chats else {})


def _pre_tokenizer(fields: Fields, model: str) -> PreTokenizer:
    name = fields.text(PREFIX + "pre", RANKED[model])
    if name not in PRE_TOKENIZERS:
        names = ", ".join(sorted(PRE_TOKENIZERS))
        raise fields.error(f"the pre-tokenizer {name!r} is not supported (supported: {names})")
    return PRE_TOKENIZERS[name]


def _ranked_bpe(fields: Fields, vocabulary: Vocabulary, pre: PreTokenizer) -> dict[str, Any]:
    """GPT-2's kind: ranked merges, of bytes as characters, or of characters where other ones are bytes."""
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    merges = [_merge(fields, merge, ids) for merge in fields.items(PREFIX + "merges")]
    model = _bpe(ids, merges) | {"ignore_merges": pre.ignore_merges}
    if pre.characters:
        model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": _unknown(vocabulary)}
    steps = list(pre.steps)
    return _tokenizer(
        model,
        vocabulary,
        normalizer=pre.normalizer,
        pre_tokenizer=steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        decoder=SPELLED if pre.characters else BYTE_LEVEL,
    )


def _unknown(vocabulary: Vocabulary) -> Any:
    """The token of what no other spells, if any."""
    kinds = zip(vocabulary.tokens, vocabulary.types, strict=True)
    return vocabulary.special_texts.get(
        "unk_token", next((token for token, kind in kinds if kind == TokenType.UNKNOWN), None)
    )


def _merge(fields: Fields, merge: Any, ids: dict[str, int]) -> list[str]:
    cut = merge.find(" ", 1) if isinstance(merge, str) else -1
    left, right = (merge[:cut], merge[cut + 1 :]) if cut > 0 else ("", "")
    if left not in ids or right not in ids or left + right not in ids:
        raise fields.error(f"tokenizer.ggml.merges holds {merge!r}, which joins no two tokens into a third")
    return [left, right]


def _sentencepiece_bpe(fields: Fields, vocabulary: Vocabulary) -> dict[str, Any]:
    """SentencePiece's kind: scores instead of merges, spaces written as ▁, unknown characters as bytes.

    A space is put before each stretch of text between added tokens, as llama.cpp and transformers do.
    """
    scores = finite_numbers(fields, PREFIX + "scores", len(vocabulary.tokens))
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    model = _bpe(ids, _merges_by_score(vocabulary, scores))
    model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": _unknown(vocabulary)}
    prefixed = fields.flag(PREFIX + "add_space_prefix", True)
    normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": SPACE}] if prefixed else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    decoders = list(SPELLING)
    if prefixed:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _tokenizer(
        model,
        vocabulary,
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _merges_by_score(vocabulary: Vocabulary, scores: list[float]) -> list[list[str]]:
    """All ways to join two mergeable tokens into a third, best score of the third first."""
    mergeable = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    kinds = zip(vocabulary.tokens, vocabulary.types, strict=True)
    ids = {token: token_id for token_id, (token, kind) in enumerate(kinds) if kind in mergeable}
    ranked: list[tuple[float, int, int, list[str]]] = []
    for token, token_id in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token_id], left, right, [token[:cut], token[cut:]]))
    return [merge for _, _, _, merge in sorted(ranked)]


def _bpe(vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _added_tokens(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Tokens matched as a whole before any splitting; control tokens are special, those of the user are text.

    They are matched in the text as it is: a normaliser that puts a space before text must not put it before them.
    """
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != TokenType.USER_DEFINED,
        }
        for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in WHOLE and token
    ]


def _tokenizer(
    model: dict[str, Any],
    vocabulary: Vocabulary,
    *,
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
