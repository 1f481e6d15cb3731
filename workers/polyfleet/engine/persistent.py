"""PersistentKernel: a model, or a graph of one's own, decoded on any backend, with tensors that follow it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from polyfleet.backends.protocol import BackendType, accelerator_name
from polyfleet.backends.registry import BackendRegistry
from polyfleet.engine.engine import Engine
from polyfleet.engine.graphs.arrays import Array
from polyfleet.engine.loader import prepare_engine
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.kernels.weights.weight import Weights
from polyfleet.loading.model import LoadedModel
from polyfleet.models.config import ModelConfig
from polyfleet.tuning.choice import check_choice
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

# What the keywords of other persistent kernels must be here, and why.
FIXED: Mapping[str, tuple[Any, str]] = {
    "world_size": (1, "a kernel is one process, which starts the ranks of tensor_parallel itself"),
    "mpi_rank": (0, "a kernel is one process, which starts the ranks of tensor_parallel itself"),
    "num_remote_schedulers": (0, "there are no other devices whose work could be scheduled"),
    "profiler_tensor": (None, "whole steps are timed, not ops: read engine.status().step_seconds"),
    "spec_decode_config": (None, "the option `speculation` says whether tokens are drafted"),
}


class PersistentKernel:
    """Weights, KV cache and executor of one model stay on their device; each call continues token ids greedily.

        step, tokens = np.zeros(1, np.int32), np.zeros((1, 1024), np.int64)
        kernel = PersistentKernel("model.gguf", max_seq_length=1024, meta_tensors=[step, tokens])
        tokens[0, :3], step[0] = (1, 2, 3), 2     # a prompt, and the index of its last token
        kernel()                                  # both hold the continuation
        kernel.generate((1, 2, 3), max_tokens=5)  # or as a tuple

    max_seq_length   tokens of a sequence, prompt included; 0: as many as model and memory allow
    eos_token_id     ends a sequence, in the place of the model's own end tokens
    num_workers      threads of a CPU; 0: all cores that may be used. Other devices choose their own
    meta_tensors     [step, tokens], int32 or int64 [n] and [n, length], kept up to date: tokens of n sequences, and
                     the index of the last one that each has. An end token is not written
    options          what `auto_configure_backend()` gives, fields of EngineOptions; without them the KV cache has
                     room for the n sequences of meta_tensors, or for one

    Not thread-safe.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel | KernelGraph,
        *,
        weights: Weights | None = None,
        backend: BackendType | str = "auto",
        world_size: int = 1,
        mpi_rank: int = 0,
        num_workers: int = 0,
        num_local_schedulers: int = 1,
        num_remote_schedulers: int = 0,
        max_seq_length: int = 0,
        eos_token_id: int | None = None,
        meta_tensors: Sequence[Array] | None = None,
        profiler_tensor: None = None,
        spec_decode_config: None = None,
        **options: Any,
    ) -> None:
        """`model` is a file, a folder, a loaded model, or a recorded graph of one, which needs its `weights`.

        The keywords of FIXED exist for configurations made elsewhere, and have one value each. Raises ValueError for
        any other, and what `Engine.load` raises.
        """
        _check_fixed((world_size, mpi_rank, num_remote_schedulers, profiler_tensor, spec_decode_config))
        _check_schedulers(num_local_schedulers)
        self._meta = None if meta_tensors is None else MetaTensors.of(meta_tensors)
        options = _merged(options, "context_length", "max_seq_length", max_seq_length)
        options = _merged(options, "threads", "num_workers", num_workers)
        count = self._meta.count if self._meta is not None else 1
        options = {"max_sequences": count, "kv_cache_tokens": count * options["context_length"], **options}
        device = _device(backend, num_workers)
        self.engine = _load(model, weights, EngineOptions(device=device, **options))
        self._end = {} if eos_token_id is None else self._ended_by(eos_token_id)
        self._rows: dict[str, int] = {}  # of meta tensors, by sequence
        self._generated: dict[str, list[int]] = {}

    def _ended_by(self, token_id: int) -> dict[str, Any]:
        """What of a request makes this token its only end; where there is no such token, nothing stays behind."""
        vocabulary = self.engine.facts.vocabulary_size
        if not isinstance(token_id, Integral) or isinstance(token_id, bool) or not 0 <= token_id < vocabulary:
            self.close()
            raise ValueError(f"eos_token_id must be 0 to {vocabulary - 1}, not {token_id!r}")
        return {"stop_token_ids": (int(token_id),), "ignore_eos": True}

    def __call__(self) -> None:
        """Continue all sequences of the meta tensors to their ends."""
        self.begin()
        while self.step():
            pass

    def begin(self) -> None:
        """Take what stands in the meta tensors as sequences to continue; those without room for a token have ended.

        Raises ValueError where there are none, they don't fit, or others are under way.
        """
        if self._meta is None:
            raise ValueError("a kernel without meta_tensors has nothing to continue: give it some, or use generate")
        prompts = {row: self._meta.read(row) for row in range(self._meta.count)}
        room = min(self.engine.facts.context_length, self._meta.length)
        self._start({row: ids for row, ids in prompts.items() if len(ids) < room}, room)

    def step(self) -> bool:
        """Compute one step of what was begun; False when all of it has ended. Raises RuntimeError when it fails."""
        updates = self.engine.step()
        for update in updates:
            self._generated[update.sequence_id] += (token.token_id for token in update.tokens)
            if self._meta is not None:
                for token in update.tokens:
                    self._meta.append(self._rows[update.sequence_id], token.token_id)
        if errors := [update.error for update in updates if update.error]:
            raise RuntimeError(errors[0])
        return self.engine.has_work

    def generate(self, prompt_ids: Sequence[int], max_tokens: int = 0) -> tuple[int, ...]:
        """The continuation of one prompt without an end token, `max_tokens` at most (0: as many as there is room for).

        Meta tensors follow it in their first row. Raises ValueError for a prompt that does not fit.
        """
        room = self.engine.facts.context_length
        if self._meta is not None:
            room = min(room, self._meta.length)
        if max_tokens < 0:
            raise ValueError(f"max_tokens must be 0 or more, not {max_tokens}")
        if not 0 < len(prompt_ids) < room:
            raise ValueError(f"a prompt must have 1 to {room - 1} tokens, not {len(prompt_ids)}")
        self._start({0: tuple(prompt_ids)}, min(room, len(prompt_ids) + (max_tokens or room)))
        if self._meta is not None:
            self._meta.write(0, prompt_ids)
        (generated,) = self._generated.values()
        while self.step():
            pass
        return tuple(generated)

    def implementations(self) -> Mapping[str, str]:
        """What runs each op."""
        return self.engine.implementations()

    def close(self) -> None:
        """Free the device's memory at once; the kernel is of no use afterwards."""
        self.engine.close()

    def __enter__(self) -> "PersistentKernel":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self, prompts: Mapping[int, Sequence[int]], room: int) -> None:
        """Queue prompts by row, each until it has `room` tokens; all of them or none."""
        if self.engine.has_work:
            raise ValueError("sequences are under way: call step until it says False")
        self._rows, self._generated = {}, {}
        try:
            for row, ids in prompts.items():
                name = f"row {row}"
                self.engine.add(SequenceRequest(name, tuple(ids), max_tokens=room - len(ids), **self._end))
                self._rows[name], self._generated[name] = row, []
        except ValueError:
            for name in self._rows:
                self.engine.cancel(name)
            raise


@dataclass(frozen=True, slots=True)
class MetaTensors:
    """Tensors of a caller: `tokens` [n, length], and `last` [n], the index of the last token that each row has."""

    last: Any
    tokens: Any

    @classmethod
    def of(cls, given: Sequence[Array]) -> "MetaTensors":
        """Views of [step, tokens]; of one sequence they may have a dimension less. Raises ValueError."""
        if not isinstance(given, Sequence) or len(given) != 2 or not all(map(_holds_integers, given)):
            raise ValueError("meta_tensors must be [step, tokens], two arrays or tensors of int32 or int64")
        if any(isinstance(each, np.ndarray) and not each.flags.writeable for each in given):
            raise ValueError("meta_tensors must be writable: they follow each token")
        step, tokens = given[0], given[1]
        last, rows = step if step.shape else step[None], tokens[None] if len(tokens.shape) == 1 else tokens
        if len(rows.shape) != 2 or len(step.shape) > 1 or len(last) != len(rows) or len(rows) < 1:
            shapes = f"{list(step.shape)} and {list(tokens.shape)}"
            raise ValueError(f"meta_tensors must be step [n] and tokens [n, length], not {shapes}")
        return cls(last, rows)

    @property
    def count(self) -> int:
        """n."""
        return len(self.tokens)

    @property
    def length(self) -> int:
        """Room for tokens in each row."""
        return int(self.tokens.shape[1])

    def read(self, row: int) -> tuple[int, ...]:
        """The tokens of a row; raises ValueError where its step lies outside."""
        last = int(self.last[row])
        if not 0 <= last < self.length:
            raise ValueError(f"step must be 0 to {self.length - 1}, the index of the last token, not {last}")
        return tuple(self.tokens[row, : last + 1].tolist())

    def write(self, row: int, ids: Iterable[int]) -> None:
        """Put ids in the place of what a row has."""
        for at, token_id in enumerate(ids):
            self.tokens[row, at] = token_id
            self.last[row] = at

    def append(self, row: int, token_id: int) -> None:
        """One token more."""
        at = int(self.last[row]) + 1
        self.tokens[row, at] = token_id
        self.last[row] = at


def _check_fixed(given: Sequence[Any]) -> None:
    """Raise ValueError unless each keyword of FIXED, in its order, has its one value."""
    for value, (name, (wanted, reason)) in zip(given, FIXED.items(), strict=True):
        if value is not wanted and (wanted is None or value != wanted):
            raise ValueError(f"{name} must be {wanted}, not {value!r}: {reason}")


def _check_schedulers(most: int) -> None:
    if type(most) is not int or most < 1:
        raise ValueError(f"num_local_schedulers must be 1 or more, not {most!r}: the engine's own Batcher is the one")


def _device(backend: BackendType | str, num_workers: int) -> str:
    device = accelerator_name(backend)
    if num_workers and BackendRegistry.get(device.partition(":")[0]).type is not BackendType.CPU:
        raise ValueError(f"num_workers must be 0 on {device}, not {num_workers}: only a CPU's threads are counted")
    return device


def _holds_integers(array: Array) -> bool:
    dtype = getattr(array, "dtype", None)
    return dtype in (torch.int32, torch.int64) if isinstance(array, torch.Tensor) else dtype in (np.int32, np.int64)


def _merged(options: dict[str, Any], field: str, keyword: str, value: int) -> dict[str, Any]:
    """The options with a keyword that means one of their fields; raises ValueError where the two contradict."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{keyword} must be a whole number of 0 or more, not {value!r}")
    there = options.get(field, 0)
    if there and value and there != value:
        raise ValueError(f"{keyword} ({value}) and {field} ({there}) mean the same: give one of them")
    return check_choice({**options, field: value or there})


def _load(model: str | Path | LoadedModel | KernelGraph, weights: Weights | None, options: EngineOptions) -> Engine:
    if (weights is None) == isinstance(model, KernelGraph):
        raise ValueError("a recorded graph needs its weights, and only a graph takes some")
    if isinstance(model, str | Path):
        return Engine.load(str(model), options)
    graph = None
    if isinstance(model, KernelGraph):
        if not options.context_length:
            raise ValueError("max_seq_length must be over 0 for a recorded graph, which does not say it")
        graph, model = model, LoadedModel("", _config(model, options.context_length), weights or {}, None)
    given = model
    return Engine.of(prepare_engine(lambda device: given, options, lambda share, phase: None, graph))


def _config(graph: KernelGraph, context_length: int) -> ModelConfig:
    """What an engine asks of a model beside its graph."""
    caches = graph.caches
    return ModelConfig(
        architecture="graph",
        name="graph",
        vocabulary_size=graph.widths[graph.logits],
        hidden_size=graph.widths[graph.hidden],
        num_layers=len(caches),
        num_heads=0,
        num_kv_heads=max((each.heads for each in caches), default=0),
        head_dim=max((each.width for each in caches), default=0),
        intermediate_size=0,
        norm_eps=0.0,
        inverse_frequencies=(),
        context_length=context_length,
        tied_embeddings=False,
    )
