"""The models that callers may name, and the text of each: resolved at once, or waited for while they are loading."""

import asyncio
from dataclasses import dataclass, replace

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from polyfleet.gateway.fleet.adapters import ServedAdapter, listed_name
from polyfleet.gateway.fleet.tokenizers import Tokenizers
from polyfleet.gateway.fleet.view import FleetView, ModelFacts
from polyfleet.gateway.prompts.prompts import Prompts
from polyfleet.gateway.request.queue import RETRY_SECONDS, RequestQueue
from polyfleet.placement.fleet import Revision
from polyfleet.process.within import Within
from polyfleet.text.errors import TextAssetsError
from polyfleet.text.model_text import ModelText
from polyfleet.v1 import inference_pb2
from polyfleet.wire.answers import Model
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Pooling

POOLINGS = {inference_pb2.Pooling.Value(f"POOLING_{each.name}"): each for each in Pooling}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model whose facts are known, and what the workers that compute it have in common.

    `text` and `prompts` None: it has no tokenizer and takes ids only.
    """

    model: Model
    text: ModelText | None
    prompts: Prompts | None = None
    fingerprint: str = ""
    revision: Revision | None = None  # that the request goes to; None: any with this fingerprint
    tokenizer_hash: str = ""
    pooling: Pooling | None = None  # of embeddings, as its own files want it
    normalized: bool = False  # whether embeddings always have length 1
    width: int = 0  # values of an embedding; 0: not known
    adapter: str = ""  # fingerprint of the one that was asked for


class Models:
    """The catalogue. Fetches tokenizers as models appear in the view.

    `own_defaults`: requests get the sampling defaults that a model's files state.
    """

    def __init__(
        self, view: FleetView, tokenizers: Tokenizers, queue: RequestQueue, limits: Limits, *, own_defaults: bool = True
    ) -> None:
        self._view = view
        self._tokenizers = tokenizers
        self._queue = queue
        self._limits = limits
        self._own_defaults = own_defaults
        view.changed.add(lambda: tokenizers.want(view.tokenizer_hashes()))

    def all(self) -> tuple[Model, ...]:
        """Every model that is served or being loaded, by name, then every adapter of them."""
        models = {facts.model.name: self._described(facts) for facts in self._view.models()}
        names = self._view.adapter_names
        adapters = (_adapted(models[each.model], each, listed_name(each, names)) for each in self._view.adapters)
        return (*models.values(), *adapters)

    def get(self, name: str) -> Model:
        """The model of that name. Raises NotFound."""
        adapter = self._view.adapter_names.get(name)
        model = self._described(self._facts(adapter.model if adapter else name))
        return _adapted(model, adapter, name) if adapter else model

    def _described(self, facts: ModelFacts) -> Model:
        """The model with its own sampling defaults, as far as they hold here and its tokenizer's document has come."""
        try:
            text = self._tokenizers.get(facts.info.tokenizer_hash) if facts.info and self._own_defaults else None
        except TextAssetsError:
            text = None
        defaults = text.answers.sampling_defaults if text else None
        return replace(facts.model, sampling_defaults=defaults) if defaults else facts.model

    def known_name(self, name: str) -> str:
        """The name, if the fleet has such a model, ready or not (of an empty one, the only model's); else empty.

        Of an adapter its model's.
        """
        if adapter := self._view.adapter_names.get(name):
            return adapter.model
        if name:
            return name if self._view.model(name) else ""
        known = self._view.models()
        return known[0].model.name if len(known) == 1 else ""

    async def resolve(self, name: str, seconds_left: float, key: str = "") -> ServedModel:
        """The model of that name (empty: the only one), waiting for what is on its way as long as the queue lets it.

        Where several revisions serve it, `key` decides.

        Raises NotFound, InvalidArgument, FailedPrecondition (its tokenizer can't be used), ResourceExhausted (too many
        wait already), Unavailable (not in time), DeadlineExceeded (not in the request's own time).
        """
        served = self._look(name, key)
        if isinstance(served, ServedModel):
            return served
        model = self.known_name(name)
        patience = self._queue.patience(model)
        with self._queue.seat(model):
            try:
                with Within(min(seconds_left, patience)):
                    return await self._wait(name, key)
            except asyncio.TimeoutError:
                reason = self._look(name, key)
        if isinstance(reason, ServedModel):
            return reason
        if seconds_left <= patience:
            raise DeadlineExceeded(f"The request's deadline has passed. {reason}")
        waited = f"It did not change within {patience:g} s."
        raise Unavailable(f"{reason} {waited}", retry_after=RETRY_SECONDS)

    async def _wait(self, name: str, key: str) -> ServedModel:
        while not isinstance(served := self._look(name, key), ServedModel):
            await self._view.changed.wait()
        return served

    def _look(self, name: str, key: str) -> ServedModel | str:
        """The model, or why it has to be waited for."""
        if not self._view.known:
            return "The gateway has not heard of the fleet yet."
        adapter = self._view.adapter_names.get(name)
        facts = self._facts(adapter.model if adapter else name)
        if not facts.model.ready_workers:
            outlook = self._view.outlook(facts.model.name)
            if outlook.hopeless:
                raise Unavailable(outlook.reason, retry_after=RETRY_SECONDS)
            if facts.info is None:
                return outlook.reason
        if facts.info is None:
            return f"Model {facts.model.name} is being loaded."
        if adapter and not adapter.fingerprint:
            if adapter.problem:
                raise FailedPrecondition(
                    f"Adapter {adapter.name} of model {adapter.model} can't be served: {adapter.problem}"
                )
            return f"Adapter {adapter.name} of model {adapter.model} is being loaded."
        facts, revision = self._view.chosen(facts, key)
        assert facts.info is not None
        fingerprint, tokenizer_hash = facts.info.fingerprint, facts.info.tokenizer_hash
        vectors = POOLINGS.get(facts.info.pooling), facts.info.normalized, facts.info.hidden_size
        adapted = adapter.fingerprint if adapter else ""
        if not tokenizer_hash:
            return ServedModel(facts.model, None, None, fingerprint, revision, "", *vectors, adapted)
        try:
            text = self._tokenizers.get(tokenizer_hash)
        except TextAssetsError as error:
            raise FailedPrecondition(f"The tokenizer of model {facts.model.name} can't be used: {error}") from None
        if text is None:
            return f"The tokenizer of model {facts.model.name} is on its way."
        described = self._described(facts)
        of_weights = fingerprint, revision, tokenizer_hash
        return ServedModel(described, text.answers, text.prompts, *of_weights, *vectors, adapted)

    def _facts(self, name: str) -> ModelFacts:
        if name:
            found = self._view.model(name)
            if found is None:
                raise NotFound(f"There is no model {name[:128]!r}; served models: {self._names() or 'none'}.")
            return found
        everything = self._view.models()
        if len(everything) > 1:
            raise InvalidArgument.of(FieldError("model", f"must name one of several models: {self._names()}"))
        if not everything:
            raise NotFound("No model is deployed.")
        return everything[0]

    def _names(self) -> str:
        names = self._view.adapter_names
        adapters = (listed_name(each, names) for each in self._view.adapters)
        return ", ".join((*(facts.model.name for facts in self._view.models()), *adapters))


def _adapted(model: Model, adapter: ServedAdapter, name: str) -> Model:
    """An adapter as a model of its own."""
    reason = model.reason or adapter.problem or ("" if adapter.fingerprint else f"Adapter {name} is being loaded.")
    return replace(model, name=name, parent=adapter.model, reason=reason)
