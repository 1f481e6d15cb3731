"""The way into a model: texts and chats become the ids of its prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from polyfleet.text.assets import make_tokenizer, parse_assets
from polyfleet.text.chat_template import ChatTemplate
from polyfleet.text.errors import TextAssetsError
from polyfleet.wire.limits import FieldError


class PromptText:
    """Built from a tokenizer assets document; raises TextAssetsError for one that can't be used."""

    def __init__(self, document: bytes) -> None:
        assets = parse_assets(document)
        self._tokenizer: Tokenizer = make_tokenizer(assets["tokenizer"])
        self._bos_id = self._first_id(assets)
        self._template = None
        self._template_problem = "this model has no chat template; send text instead"
        if assets.get("chat_template"):
            try:
                self._template = ChatTemplate(assets["chat_template"], assets.get("bos_token"), assets.get("eos_token"))
            except TextAssetsError as error:
                self._template_problem = str(error)

    def _first_id(self, assets: Mapping[str, Any]) -> int | None:
        """The id that every text has to begin with, if any."""
        bos = assets.get("bos_token") if assets.get("add_bos") else None
        return self._tokenizer.token_to_id(bos) if bos else None

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
