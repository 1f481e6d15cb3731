"""Prepares the model that drafts: on the device of the one that it drafts for, beside it, and before it is sized.

Beside a model of several ranks it is whole on the first one's device.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from polyfleet.engine.choosing.executors import ExecutorKind, Workload, believable, candidates, first_that_works, refuse
from polyfleet.engine.choosing.trial import trial
from polyfleet.engine.executor import Capacity, Executor, Footprint
from polyfleet.engine.speculation.draft_model import DraftModel
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.limits import FieldError

NOTHING = Footprint(0, 0)


@dataclass(slots=True)
class Beside:
    """What runs beside the model; without a model that drafts it takes nothing."""

    footprint: Footprint = NOTHING
    executor: Executor | None = None
    widths: tuple[int, int] = (0, 0)  # of logits and of hidden states

    def allocate(self, capacity: Capacity) -> DraftModel | None:
        """The drafter, with room for as much as the model has."""
        if self.executor is None:
            return None
        try:
            self.executor.allocate(capacity)
        except MemoryError:
            raise FieldError("draft_model", "finds no memory for its KV cache beside the model's") from None
        trial(self.executor, capacity, *self.widths)
        return DraftModel(self.executor, capacity)

    def close(self) -> None:
        """Free what it holds, where something went wrong."""
        if self.executor is not None:
            with suppress(Exception):
                self.executor.close()


def beside(workload: Workload, model: LoadedModel, progress: Callable[[float], None]) -> Beside:
    """Load what the options name to draft for a model.

    Raises ModelFileError for its file; FieldError where it has another vocabulary, or is larger than the model.
    """
    options = workload.options
    if options.speculation != "draft":
        return Beside()
    small = load_model(options.draft_model, lambda share: None)
    if problem := unlike(small, model):
        raise FieldError("draft_model", problem)
    graph = record(small.config, small.weights)
    if graph.states or not graph.caches:
        raise FieldError("draft_model", "must keep keys and values of all tokens, which its architecture does not")
    own = replace(options, speculation="off", draft_model="", executor="auto", weights="dense", tensor_parallel=0)
    task = replace(workload, graph=graph, weights=small.weights, options=own, spent=None)

    def build(kind: ExecutorKind) -> tuple[Executor, Footprint]:
        refuse(kind, task)
        executor = kind.build(task, progress)
        return executor, believable(kind.name, executor.measure())

    (executor, footprint), _ = first_that_works(candidates(own, task.device, task.capabilities), build)
    return Beside(footprint, executor, (graph.widths[graph.logits], graph.widths[graph.hidden]))


def together(model: Footprint, other: Footprint) -> Footprint:
    """What both take; of their steps only one is computed at a time."""
    kv_per_token, workspace = model.kv_per_token + other.kv_per_token, max(model.workspace, other.workspace)
    return replace(model, weights=model.weights + other.weights, kv_per_token=kv_per_token, workspace=workspace)


def unlike(small: LoadedModel, model: LoadedModel) -> str:
    """Why a model can't draft for another, in a few words; "" where it can."""
    sizes = small.config.vocabulary_size, model.config.vocabulary_size
    if sizes[0] != sizes[1] or _vocabulary(small) != _vocabulary(model):
        return f"must have the model's vocabulary of {sizes[1]} tokens, not another of {sizes[0]}"
    numbers = [sum(each.rows * each.columns for each in of.weights.values()) for of in (small, model)]
    if numbers[0] > numbers[1]:
        return f"must be smaller than the model, which has {numbers[1]} weights, not {numbers[0]}"
    return ""


def _vocabulary(model: LoadedModel) -> Any:
    """As its tokenizer has it; None without one."""
    if model.tokenizer is None:
        return None
    return json.loads(model.tokenizer.document)["tokenizer"].get("model", {}).get("vocab")
