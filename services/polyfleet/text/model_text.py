"""Everything about text that belongs to one model: encode, render chats, decode as tokens come."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from polyfleet.text.chat_template import ChatTemplate
from polyfleet.text.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer, byte_pieces
from polyfleet.text.errors import TextAssetsError
from polyfleet.wire.limits import FieldError

MAX_VOCABULARY = 1 << 22


class ModelText:
    """Built from a tokenizer assets document (its keys stand in `TokenizerAssets` of the worker's loading).

    Raises TextAssetsError for a document that can't be used. Thread-safe.
    """

    def __init__(self, document: bytes) -> None:
        assets = _parse(document)
        self._tokenizer = _tokenizer(assets["tokenizer"])
        self._special_ids = frozenset(t["id"] for t in assets["tokenizer"].get("added_tokens", ()) if t.get("special"))
        self._bos_id = self._first_id(assets)
        self.end_token_ids = tuple(assets.get("end_token_ids") or ())
        self._template = None
        self._template_problem = "this model has no chat template; send text instead"
        if assets.get("chat_template"):
            try:
                self._template = ChatTemplate(assets["chat_template"], assets.get("bos_token"), assets.get("eos_token"))
            except TextAssetsError as error:
                self._template_problem = str(error)
        self._byte_pieces = self._read_byte_pieces(assets["tokenizer"])

    def _first_id(self, assets: Mapping[str, Any]) -> int | None:
        """The id that every text has to begin with, if any."""
        bos = assets.get("bos_token") if assets.get("add_bos") else None
        return self._tokenizer.token_to_id(bos) if bos else None

    def _read_byte_pieces(self, tokenizer: Mapping[str, Any]) -> tuple[bytes, ...] | None:
        """The bytes of each token when the vocabulary is byte-level, else None."""
        if (tokenizer.get("decoder") or {}).get("type") != "ByteLevel":
            return None
        size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if size > MAX_VOCABULARY:
            raise TextAssetsError(f"The tokenizer assets hold token id {size - 1}, beyond {MAX_VOCABULARY}.")
        spell = self._tokenizer.id_to_token
        return byte_pieces(None if i in self._special_ids else spell(i) for i in range(size))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the model's own first token when asked for. Raises FieldError on `text`."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise FieldError("text", "holds half a surrogate pair, which is no Unicode text") from None
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        return ids

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt of a chat, special tokens spelled out: encode it without adding any. Raises FieldError."""
        if self._template is None:
            raise FieldError("messages", self._template_problem)
        return self._template.render(messages)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The whole text of these ids, special tokens left out."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental detokeniser."""
        return ByteDetokenizer(self._byte_pieces) if self._byte_pieces is not None else WindowDetokenizer(self.decode)

    def token_text(self, token_id: int) -> str:
        """One token alone, U+FFFD where it is part of a character; special tokens as they are spelled."""
        if token_id in self._special_ids or self._byte_pieces is None:
            text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
            return text
        in_vocabulary = token_id < len(self._byte_pieces)
        return self._byte_pieces[token_id].decode("utf-8", "replace") if in_vocabulary else ""

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each id as the vocabulary spells it; empty for an id without a token."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]


def _parse(document: bytes) -> dict[str, Any]:
    try:
        assets = json.loads(document)
    except ValueError as error:
        raise TextAssetsError(f"The tokenizer assets are not JSON: {error}.") from None
    if not isinstance(assets, dict) or not isinstance(assets.get("tokenizer"), dict):
        raise TextAssetsError("The tokenizer assets have no object `tokenizer`.")
    return assets


def _tokenizer(definition: Mapping[str, Any]) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(json.dumps(definition))
    except Exception as error:  # the library raises bare Exception
        raise TextAssetsError(f"The tokenizer assets are refused: {error}.") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
