"""The way into a model: texts and chats become the ids of its prompt."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tokenizers import AddedToken

from polyfleet.text.assets import make_tokenizer, parse_assets, patterns
from polyfleet.text.chat_renderer import ChatRenderer
from polyfleet.text.control_tokens import ControlTokens
from polyfleet.text.cuts import cut
from polyfleet.text.errors import check_unicode
from polyfleet.text.images import SEES_NONE, Grid, ImageSettings
from polyfleet.text.shield import Shield
from polyfleet.text.span import max_token_bytes
from polyfleet.wire.limits import CONTEXT_LENGTH_EXCEEDED, FieldError
from polyfleet.wire.requests import Message

MAX_CUTS = 8  # times that text is cut again where the model reads it as a control token


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat's ids, and the ids that end the model's turn in this template.

    `thinking`: it ends within the model's thoughts.
    """

    token_ids: list[int]
    end_token_ids: tuple[int, ...] = ()
    thinking: bool = False


class Pair(NamedTuple):
    """A query and a document, which begins at `segment_start`; 0: a document alone."""

    token_ids: list[int]
    segment_start: int


class PromptText:
    """Built from a tokenizer assets document; raises TextAssetsError for one that can't be used. Not thread-safe.

    The chat template is compiled and tried when it is first asked for: it may fail, or take for ever.
    """

    def __init__(self, document: bytes) -> None:
        assets = parse_assets(document)
        sources: list[str] = [assets.get(name) or "" for name in ("chat_template", "tool_template")]
        pair_template: str = assets.get("pair_template") or ""
        special = _special(assets)
        ends = assets.get("end_token_ids") or ()
        self._control = ControlTokens(
            assets["tokenizer"], "".join((*sources, pair_template)), set(special.values()), ends
        )
        self.images = ImageSettings.of(assets)
        self._shield = Shield(self._control.spellings)
        self._chats = ChatRenderer(sources, special, self._shield)
        definition = assets["tokenizer"]
        self.patterns = tuple(patterns([definition.get(each) for each in ("normalizer", "pre_tokenizer")]))
        self._tokenizer = make_tokenizer(self._control.declare(definition))
        self._pair_template = pair_template
        self._max_token_bytes = max_token_bytes(assets["tokenizer"])
        self._mark = f"\ufdd0{secrets.token_hex(16)}"  # nobody can know it, so no text holds it
        self._tokenizer.add_tokens([AddedToken(self._mark, normalized=False)])
        model = assets["tokenizer"].get("model") or {}
        unknown_id = model.get("unk_id", self._tokenizer.token_to_id(model.get("unk_token") or ""))
        self._harmful_ids = self._control.ids - {unknown_id}
        self._bos_id = self._first_id(assets)
        bare, around = (self._tokenizer.encode(self._mark, add_special_tokens=each).ids for each in (False, True))
        middle = around.index(bare[0])
        self._before, self._behind = around[:middle], around[middle + 1 :]  # what the tokenizer itself puts there
        pair = self._tokenizer.encode(self._mark, self._mark).ids
        self._between = pair[middle + 1 : pair.index(bare[0], middle + 1)]

    def _first_id(self, assets: Mapping[str, Any]) -> int | None:
        """The id that every text has to begin with, if any."""
        bos = assets.get("bos_token") if assets.get("add_bos") else None
        return self._tokenizer.token_to_id(bos) if bos else None

    def encode(self, text: str, add_special_tokens: bool = True, max_tokens: int = 0) -> list[int]:
        """Token ids of `text`, control tokens where it spells them, with the model's own first token when asked for.

        Raises FieldError on `text`, also when it is so long that it can't be `max_tokens` (0: any number) or fewer.
        """
        self._check_length("text", text, max_tokens)
        ids = self._encode(text, plain=False)
        return [*self._first(ids), *ids, *self._behind] if add_special_tokens else ids

    def encode_document(self, document: str, max_tokens: int, max_text: int = 0, *, query: str = "") -> Pair:
        """Token ids of a document, behind those of a query where one is given; what they spell is text.

        The document is cut where all would be over `max_tokens`, or it itself over `max_text` (0: any number). Raises
        FieldError on `query` where that leaves no room, or on `document`.
        """
        check_unicode("document", document)
        self._check_length("query", query, max_tokens)
        first = self._plain(query, first=True)
        if self._pair_template and query:
            head, ids, behind = self._templated_pair(query, document)
        else:
            head, behind = [*self._first(first), *first, *(self._between if query else ())], self._behind
            ids = self._plain(document, first=True)
        room = max_tokens - len(head) - len(behind)
        if room < 1:
            problem = f"is {len(first)} tokens long, which leaves no room for a document"
            limit = f"this model's maximum context length is {max_tokens} tokens"
            raise FieldError("query", f"{problem}: {limit}", CONTEXT_LENGTH_EXCEEDED)
        return Pair([*head, *ids[: min(room, max_text or room)], *behind], len(head) if query else 0)

    def _templated_pair(self, query: str, document: str) -> tuple[list[int], list[int], list[int]]:
        """Ids before a document, of it, and behind it, as one text spells them: their borders lie between tokens."""
        before, _, behind = self._pair_template.partition("{document}")
        head = before.replace("{query}", self._shield.hide(query))
        whole, alone = self._prompt(head + self._shield.hide(document)), self._prompt(head)
        differing = (at for at, (one, other) in enumerate(zip(whole, alone, strict=False)) if one != other)
        length = next(differing, min(len(whole), len(alone)))
        return whole[:length], whole[length:], self._prompt(behind)

    def _first(self, ids: Sequence[int]) -> list[int]:
        """What stands before a text of these ids."""
        bos = [] if self._bos_id is None or [*self._before, *ids][:1] == [self._bos_id] else [self._bos_id]
        return [*bos, *self._before]

    def encode_chat(
        self,
        messages: Sequence[Message],
        max_tokens: int = 0,
        *,
        tools: Sequence[str] = (),
        arguments: str = "",
        open_contents: bool = False,
        grids: Sequence[Grid] = (),
    ) -> ChatPrompt:
        """The prompt of a chat; what contents and names spell is text, unless `open_contents`. Raises FieldError.

        `tools` and `arguments` are JSON, as in GenerateRequest; `grids` are of the images, as they are cut.
        """
        hide = (lambda text: text) if open_contents else self._shield.hide
        prompt = self._chats.render(messages, tools, arguments, hide)
        rendered = self._with_images(prompt.text, grids) if grids else prompt.text
        self._check_length("messages", self._shield.show(rendered), max_tokens)
        ids = self._encode(rendered, plain=False) if open_contents else self._prompt(rendered)
        return ChatPrompt(ids, self._end_of_turn, prompt.thinking)

    def _prompt(self, rendered: str) -> list[int]:
        """Ids of a prompt whose contents are hidden, so that control tokens are those of its template alone."""
        ids, done = list[int](), 0
        for found in self._control.find(rendered):
            ids += self._plain(self._shield.show(rendered[done : found.start]), first=done == 0)
            ids.append(found.token_id)
            done = found.end
        return ids + self._plain(self._shield.show(rendered[done:]), first=done == 0)

    def _with_images(self, rendered: str, grids: Sequence[Grid]) -> str:
        """The prompt with every image spelled out where the template has left room for it. Raises FieldError."""
        if self.images is None:
            raise FieldError("messages", SEES_NONE)
        first, *others = rendered.split(self.images.token)
        if len(others) != len(grids):
            problem = f"show {len(grids)} images, but the model's chat template has room for {len(others)} of them"
            raise FieldError("messages", problem)
        behind = (self.images.spelled(grid) + text for grid, text in zip(grids, others, strict=True))
        return first + "".join(behind)

    def render_chat(self, messages: Sequence[Message], *, tools: Sequence[str] = (), arguments: str = "") -> str:
        """The prompt of a chat as text, special tokens spelled out. Raises FieldError."""
        return self._shield.show(self._chats.render(messages, tools, arguments, self._shield.hide).text)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each id as the vocabulary spells it; empty for an id without a token."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def prepare_chat(self) -> None:
        """Compile and try the template, if there is one. Raises TextAssetsError when it can't be used."""
        self._chats.prepare()

    @cached_property
    def _end_of_turn(self) -> tuple[int, ...]:
        """The control token that the template writes right behind an answer, if it does."""
        found = next(self._control.find(self._chats.behind_answer), None)
        return (found.token_id,) if found and found.start == 0 else ()

    def _check_length(self, field: str, text: str, max_tokens: int) -> None:
        check_unicode(field, text)
        if not max_tokens or self._max_token_bytes is None:
            return
        size, room = len(text.encode()), max_tokens * self._max_token_bytes
        if size > room:
            raise FieldError(
                field,
                f"is {size} bytes long, but this model's maximum context length is {max_tokens} tokens, which hold at "
                f"most {room} bytes: no token of this model stands for more than {self._max_token_bytes}",
                CONTEXT_LENGTH_EXCEEDED,
            )

    def _encode(self, text: str, *, plain: bool, first: bool = True) -> list[int]:
        """Ids without those that the tokenizer adds. `first`: nothing stands before it.

        Behind the mark the tokenizer treats text as what it is, something that stands behind an added token.
        """
        self._tokenizer.encode_special_tokens = plain
        ids: list[int] = []
        for piece in cut(text, self._same):
            ids += self._ids(piece) if first and not ids else self._ids(self._mark + piece)[1:]
        return ids

    def _ids(self, text: str) -> list[int]:
        # Without offsets, which are half of the work.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _same(self, text: str, at: int) -> bool:
        """Whether cutting a text there changes none of its ids."""
        return self._ids(text) == self._ids(text[:at]) + self._ids(self._mark + text[at:])[1:]

    def _plain(self, text: str, *, first: bool, cuts: int = MAX_CUTS) -> list[int]:
        """Ids of a piece of a prompt that holds no control token, whatever it spells. `first`: the prompt's first."""
        if not text:
            return []
        ids = self._encode(text, plain=True, first=first)
        if not self._leaks(ids):
            return ids
        if not cuts:
            return [each for each in ids if not self._leaks((each,))]
        pieces = self._cut(text)
        return [
            each
            for index, piece in enumerate(pieces)
            for each in self._plain(piece, first=first and index == 0, cuts=cuts - 1)
        ]

    def _leaks(self, ids: Sequence[int]) -> bool:
        """Whether plain text was read as a control token: vocabularies of SentencePiece hold their spellings."""
        return not self._harmful_ids.isdisjoint(ids)

    def _cut(self, text: str) -> list[str]:
        """`text` in pieces, cut within each stretch that was read as a control token."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        cuts = [
            start + 1
            for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if end - start > 1 and self._leaks((token_id,))
        ]
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _special(assets: Mapping[str, Any]) -> dict[str, str]:
    """The variables of templates that hold special tokens; those of an absent `bos_token` or `eos_token` are empty."""
    named = assets.get("special_tokens") or {}
    found = {name: text for name, text in named.items() if isinstance(text, str)}
    return {**found, "bos_token": assets.get("bos_token") or "", "eos_token": assets.get("eos_token") or ""}
