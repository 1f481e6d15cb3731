"""Tokens become what the client sees: text, ids, logprobs, and the end, stop strings included."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyfleet.gateway.request.accounts import Record
from polyfleet.gateway.request.inbox import Parcel
from polyfleet.text.answer.parser import AnswerParser, Parsed
from polyfleet.text.model_text import ModelText
from polyfleet.text.stop import StopMatcher, StopStrings
from polyfleet.wire.answers import Delta, FinishReason, SampledToken, TokenLogprobs
from polyfleet.wire.requests import SequenceRequest

MAX_PROMPT_LOGPROBS = 2048  # of a delta: with 20 alternatives each, 1 MB


class ChoiceOutput:
    """Takes the parcels of one choice in order. `text` None: a model without a tokenizer, whose output is ids alone.

    The text goes on behind the request's prompt. Stop strings are sought in it with special tokens spelled out, which
    it does not show. Ids and logprobs of the tokens that completed a stop string come out; their matched text does not.
    `parser` tells thoughts and calls apart from it. `prefix` comes before all that. `silent`: nothing else is told but
    the prompt's logprobs, whatever was drawn behind it.
    """

    def __init__(
        self,
        request: SequenceRequest,
        text: ModelText | None,
        stops: StopStrings | None,
        parser: AnswerParser | None = None,
        prefix: str = "",
        *,
        silent: bool = False,
    ) -> None:
        self._choice = request.choice
        self._with_logprobs = request.logprobs is not None
        self._scored_ids = request.prompt_ids if request.prompt_logprobs is not None else ()
        self._num_scored = 0
        self._text = text
        self._detokenizer = text.detokenizer(request.prompt_ids) if text else None
        self._matcher = StopMatcher(stops) if stops else None
        self._parser = parser
        self._prefix = prefix
        self._silent = silent
        self.num_thought = 0  # tokens so far that thoughts took
        self._markers = parser.markers if parser else frozenset()
        self._plain = not (stops or parser or silent or self._with_logprobs or self._scored_ids)

    def take(self, parcel: Parcel) -> Delta:
        """What the parcel lets the client see. The choice has ended when it carries a finish reason."""
        if self._silent:
            parcel = replace(parcel, tokens=[], finish_reason=parcel.finish_reason and FinishReason.LENGTH)
        token_ids, reason = [token.token_id for token in parcel.tokens], parcel.finish_reason
        if self._plain and reason is None:  # nearly all are like this
            text = self._detokenizer.add(token_ids) if self._detokenizer else ""
            text, self._prefix = self._prefix + text, ""
            return Delta(self._choice, text, tuple(token_ids), worker_id=parcel.worker_id)
        texts, num_used = self._add(token_ids)
        tail = self._finish() if reason is not None else ""
        if self._matcher is not None and self._matcher.matched:
            reason = FinishReason.STOP
        text, self._prefix = "".join((self._prefix, *texts, tail)), ""
        logprobs = tuple(map(self._logprob, parcel.tokens[:num_used])) if self._with_logprobs else ()
        delta = Delta(self._choice, text, tuple(token_ids[:num_used]), logprobs, reason, worker_id=parcel.worker_id)
        if self._num_scored < len(self._scored_ids):
            delta = delta._replace(prompt_logprobs=tuple(self._scores(parcel.prompt_logprobs)))
        if self._matcher is not None and self._matcher.matched:
            delta = delta._replace(stop_string=self._matcher.matched)
        return delta if self._parser is None else self._parsed(delta, texts, tail, self._parser)

    def _parsed(self, delta: Delta, texts: Sequence[str], tail: str, parser: AnswerParser) -> Delta:
        """The delta with its text taken apart. The choice ends with its last call that may be told."""
        parsed = Parsed()
        for text in texts:
            parsed = parsed.then(parser.add(text))
            self.num_thought += parser.thinking
        parsed = parsed.then(parser.add(tail))
        reason = delta.finish_reason or (FinishReason.STOP if parser.done else None)
        if reason is not None:
            parsed = parsed.then(parser.finish(truncated=reason is FinishReason.LENGTH))
            if reason is FinishReason.STOP and parser.calls_tools:
                reason = FinishReason.TOOL_CALLS
        return delta._replace(**parsed._asdict(), finish_reason=reason)

    def _scores(self, scores: Sequence[SampledToken]) -> Iterator[TokenLogprobs]:
        """Of the prompt's next tokens; nothing stands before the first."""
        given = scores if self._num_scored else (SampledToken(0), *scores)
        for each in given:
            token_id = self._scored_ids[self._num_scored]
            yield self._logprob(SampledToken(token_id, each.logprob, each.top_ids, each.top_logprobs))
            self._num_scored += 1

    def _add(self, token_ids: list[int]) -> tuple[list[str], int]:
        """The text that these tokens make safe to show, and how many of them count: all, or those up to the stop.

        Token by token where stop strings or markers are sought in it.
        """
        if self._text is None or self._detokenizer is None:
            return [], len(token_ids)
        if self._matcher is None and not self._markers:
            return [self._detokenizer.add(token_ids)], len(token_ids)
        texts = list[str]()
        for token_id in token_ids:
            special, shown = self._text.special_text(token_id), self._detokenizer.add((token_id,))
            if special in self._markers:
                special, shown = "", special + shown
            texts.append(self._matcher.add_token(special, shown) if self._matcher else shown)
            if self._matcher and self._matcher.matched:
                break
        return texts, len(texts)

    def _finish(self) -> str:
        """What was held back of half characters and beginnings of stop strings."""
        tail = self._detokenizer.finish() if self._detokenizer else ""
        return self._matcher.add(tail) + self._matcher.finish() if self._matcher else tail

    def _logprob(self, sampled: SampledToken) -> TokenLogprobs:
        top = tuple(
            self._token(each, logprob) for each, logprob in zip(sampled.top_ids, sampled.top_logprobs, strict=False)
        )
        return self._token(sampled.token_id, sampled.logprob, top)

    def _token(self, token_id: int, logprob: float, top: tuple[TokenLogprobs, ...] = ()) -> TokenLogprobs:
        if self._text is None:
            return TokenLogprobs(token_id, "", logprob, top)
        return TokenLogprobs(
            token_id, self._text.token_text(token_id), logprob, top, self._text.partial_bytes(token_id)
        )


class RequestOutput:
    """All choices of one request, and the account of what came out."""

    def __init__(
        self, choices: Sequence[ChoiceOutput], num_prompt: int, record: Record, *, continuous_usage: bool = False
    ) -> None:
        self._choices = choices
        self._continuous_usage = continuous_usage
        self._num_prompt = num_prompt
        self._record = record
        self._ended: set[int] = set()
        self._begun = False
        self.finished = False  # every choice

    def take(self, parcel: Parcel) -> Delta | None:
        """The delta for the client; None for news that come behind the end of their choice."""
        choice = parcel.choice
        if choice in self._ended:
            return None
        output = self._choices[choice]
        thought, delta = output.num_thought, output.take(parcel)
        self._record.generated(len(delta.token_ids), output.num_thought - thought)
        if delta.finish_reason is not None:
            self._ended.add(choice)
            self.finished = len(self._ended) == len(self._choices)
        if not self._begun:
            self._begun = True
            self._record.placed(parcel.worker_id, parcel.queue_seconds)
            self._record.prompt(self._num_prompt, parcel.cached_tokens)
            delta = delta._replace(request_id=self._record.request_id)
        if self.finished or self._continuous_usage:
            delta = delta._replace(usage=self._record.usage)
        return delta


def in_parts(delta: Delta) -> Iterator[Delta]:
    """A delta whose prompt's logprobs are so many that one message would not hold them comes as several."""
    scores = delta.prompt_logprobs
    while len(scores) > MAX_PROMPT_LOGPROBS:
        yield Delta(delta.choice, request_id=delta.request_id, prompt_logprobs=scores[:MAX_PROMPT_LOGPROBS])
        scores = scores[MAX_PROMPT_LOGPROBS:]
        delta = delta._replace(request_id="", prompt_logprobs=scores)
    yield delta
