"""Engines of each kind over one small model, and what a prompt comes to in them: for tests of prefixes that move."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from polyfleet.backends.cpu import CpuBackend
from polyfleet.backends.registry import BackendRegistry
from polyfleet.engine.choosing.executors import KNOWN, Workload, find
from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import Executor
from polyfleet.loading.fingerprint import fingerprint
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import silent
from polyfleet.models.registry import record
from polyfleet.wire.answers import SampledToken, SequenceUpdate
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import PrefixSource

VOCABULARY = 20  # all of whose logprobs may be asked for
PROMPT = tuple(np.random.default_rng(5).integers(3, VOCABULARY, size=70).tolist())
TENANT = b"a tenant"


class Kind(NamedTuple):
    executor: str
    dtype: str
    block_size: int
    stores: str  # the dtype of its cache
    kv_dtype: str = "auto"


KINDS = {
    "cpu": Kind("persistent", "float32", 16, "float16"),
    "eager": Kind("eager", "float32", 16, "float32"),
    "eager_bfloat16": Kind("eager", "bfloat16", 32, "bfloat16"),
    "eager_fp8": Kind("eager", "float32", 16, "float32", "fp8"),
    "cpu_int8": Kind("persistent", "float32", 16, "int8", "int8"),
    "eager_int8": Kind("eager", "float32", 32, "int8", "int8"),
    "vulkan": Kind("vulkan", "float32", 16, "float32"),
}
# The most that a logprob may differ from one computed in place: what the coarser of both caches rounds.
TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 0.15, "int8": 0.15}


def engine(model: LoadedModel, name: str) -> Engine:
    kind = KINDS[name]
    if kind.executor == "vulkan":
        pytest.importorskip("wgpu", reason="the vulkan extra is not installed")
        if BackendRegistry.find("vulkan") is None:
            pytest.skip("no Vulkan device: apt install mesa-vulkan-drivers libvulkan1")
    workload = workload_of(model, kind)
    return over(find(kind.executor, KNOWN[kind.executor]).build(workload, silent), workload, model)


def workload_of(model: LoadedModel, kind: Kind) -> Workload:
    options = EngineOptions(
        device="cpu",
        dtype=kind.dtype,
        kv_dtype=kind.kv_dtype,
        context_length=128,
        kv_cache_tokens=256,
        max_sequences=4,
        step_tokens=96,
        block_size=kind.block_size,
        threads=1,
    )
    backend = CpuBackend()
    capabilities = backend.capabilities(backend.devices()[0])
    return Workload(record(model.config, model.weights), model.weights, options, "cpu", kind.dtype, capabilities)


def over(executor: Executor, workload: Workload, model: LoadedModel) -> Engine:
    executor.allocate(capacity_of(workload.options))
    return Engine(executor, model.config, workload.options, fingerprint=fingerprint(model))


def add(target: Engine, name: str, prompt: tuple[int, ...] = PROMPT, prefix_source: PrefixSource | None = None) -> None:
    """Eight greedy tokens with all logprobs."""
    request = SequenceRequest(name, prompt, max_tokens=8, ignore_eos=True, logprobs=VOCABULARY, cache_salt=TENANT)
    target.add(replace(request, prefix_source=prefix_source))


def drained(target: Engine) -> list[SequenceUpdate]:
    updates = []
    while target.has_work:
        updates += target.step()
        target.check()
    assert not any(update.error for update in updates)
    return updates


def answer(target: Engine, prefix_source: PrefixSource | None = None) -> tuple[list[SampledToken], int]:
    """The tokens behind PROMPT, and how many tokens of it were cached."""
    add(target, "one", prefix_source=prefix_source)
    updates = drained(target)
    return [token for update in updates for token in update.tokens], updates[0].cached_tokens or 0


def assert_alike(actual: list[SampledToken], expected: list[SampledToken], source: str, target: str) -> None:
    """The same tokens, as likely as the caches of both kinds of engines can tell."""
    stores = {KINDS[name].stores for name in (source, target)}
    tolerance = TOLERANCE["float16"] if stores == {"int8"} else max(TOLERANCE[each] for each in stores)
    for mine, reference in zip(actual, expected, strict=True):
        assert logprobs(mine) == pytest.approx(logprobs(reference), abs=tolerance)
        assert mine.token_id == reference.token_id


def logprobs(token: SampledToken) -> list[float]:
    """In the order of ids."""
    return [logprob for _, logprob in sorted(zip(token.top_ids, token.top_logprobs, strict=True))]
