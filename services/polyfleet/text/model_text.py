"""The way out of a model: ids become text as they come. Its other direction is PromptText."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from polyfleet.text.answer.formats import find_tool_format
from polyfleet.text.answer.parser import find_reasoning_tags, find_response_tags
from polyfleet.text.assets import make_tokenizer, parse_assets
from polyfleet.text.detokenize import REPLACEMENT, ByteDetokenizer, Detokenizer, WindowDetokenizer, byte_piece
from polyfleet.text.errors import TextAssetsError
from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.limits import FieldError
from polyfleet.wire.sampling import DEFAULTABLE, SamplingParams

MAX_VOCABULARY = 1 << 22
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # as SentencePiece spells them


class ModelText:
    """Built from a tokenizer assets document (its keys stand in `TokenizerAssets` of the worker's loading).

    Raises TextAssetsError for a document that can't be used. Thread-safe.
    """

    def __init__(self, document: bytes) -> None:
        self._document = document
        assets = parse_assets(document)
        self._tokenizer = make_tokenizer(assets["tokenizer"])
        self._added = {i: token.content for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._special_ids = frozenset(i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special)
        self.sees_images = assets.get("images") is not None
        self.end_token_ids = tuple(assets.get("end_token_ids") or ())
        self.sampling_defaults = _sampling_defaults(assets.get("sampling_defaults") or {})
        self._byte_pieces = self._read_byte_pieces(assets["tokenizer"].get("decoder"))
        self._anchor = self._find_anchor()
        templates = [assets.get(name) or "" for name in ("chat_template", "tool_template")]
        self.tool_format = find_tool_format("".join(templates))
        self.reasoning_tags = find_reasoning_tags(templates[0])
        self.response_tags = find_response_tags(templates[0])

    @cached_property
    def prompts(self) -> PromptText:
        """The other direction, with a tokenizer of its own; made when first asked for."""
        return PromptText(self._document)

    def _read_byte_pieces(self, decoder: Mapping[str, Any] | None) -> tuple[bytes, ...] | None:
        """The bytes of each token when the vocabulary is byte-level, else None. Added tokens are spelled as they are.

        Special tokens and ids without a token have none.
        """
        if not _is_byte_level(decoder):
            return None
        size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if size > MAX_VOCABULARY:
            raise TextAssetsError(f"The tokenizer assets hold token id {size - 1}, beyond {MAX_VOCABULARY}.")

        def piece(token_id: int) -> bytes:
            if token_id in self._added:
                return b"" if token_id in self._special_ids else self._added[token_id].encode()
            return byte_piece(self._tokenizer.id_to_token(token_id) or "")

        return tuple(map(piece, range(size)))

    def _find_anchor(self) -> tuple[int, ...]:
        """Ids of some plain text: behind it a token shows the text that it has within a sentence."""
        ids: list[int] = self._tokenizer.encode("a", add_special_tokens=False).ids
        return tuple(ids) if self.decode(ids) else ()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See PromptText."""
        return self.prompts.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The whole text of these ids, special tokens left out."""
        if self._byte_pieces is not None:
            detokenizer = ByteDetokenizer(self._byte_pieces)
            return detokenizer.add(token_ids) + detokenizer.finish()
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def spelled(self, token_ids: Sequence[int]) -> str:
        """The whole text of these ids, special tokens as they are spelled."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def detokenizer(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        """A fresh incremental detokeniser of an answer to this prompt."""
        if self._byte_pieces is not None:
            return ByteDetokenizer(self._byte_pieces, prompt_ids)
        return WindowDetokenizer(self.decode, prompt_ids, self._special_ids)

    def specials(self, spellings: Collection[str]) -> tuple[tuple[str, int], ...]:
        """Those of these that are special tokens, with their ids: no text is spelled so."""
        return tuple((self._added[each], each) for each in sorted(self._special_ids) if self._added[each] in spellings)

    def special_text(self, token_id: int) -> str:
        """How a special token is spelled, which no decoded text shows; empty for every other id."""
        return self._added[token_id] if token_id in self._special_ids else ""

    def token_text(self, token_id: int) -> str:
        """One token as it reads within a text, U+FFFD where it is part of a character; special tokens as spelled."""
        if token_id in self._special_ids:
            return self._added[token_id]
        if self._byte_pieces is not None:
            in_vocabulary = token_id < len(self._byte_pieces)
            return self._byte_pieces[token_id].decode("utf-8", "replace") if in_vocabulary else ""
        return self.decode((*self._anchor, token_id)).removeprefix(self.decode(self._anchor))

    def partial_bytes(self, token_id: int) -> bytes:
        """A token's bytes where they are no whole characters, so that its text has U+FFFD; else none."""
        if REPLACEMENT not in self.token_text(token_id):
            return b""
        if self._byte_pieces is not None:
            return self._byte_pieces[token_id]
        byte = BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(token_id) or "")
        return bytes.fromhex(byte[1]) if byte else b""

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each id as the vocabulary spells it; empty for an id without a token."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]


def _sampling_defaults(stated: Mapping[str, Any]) -> Mapping[str, float]:
    """What the model's files state of how tokens are drawn, by field of SamplingParams."""
    try:
        SamplingParams(**{name: stated[name] for name in DEFAULTABLE if name in stated}).check("")
        if unknown := sorted(stated.keys() - set(DEFAULTABLE)):
            raise FieldError(unknown[0], f"is none of {', '.join(DEFAULTABLE)}")
    except (AttributeError, TypeError, FieldError) as error:
        raise TextAssetsError(f"The tokenizer assets' sampling defaults are refused: {error}.") from None
    return {name: stated[name] for name in DEFAULTABLE if name in stated}


def _is_byte_level(decoder: Mapping[str, Any] | None) -> bool:
    """Whether a decoder only turns the byte alphabet into bytes."""
    if not decoder:
        return False
    parts = decoder.get("decoders") or [{}] if decoder.get("type") == "Sequence" else [decoder]
    return all(part.get("type") == "ByteLevel" for part in parts if part.get("type") != "Fuse")
