"""Models and workloads for tests of the eager executor."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.choosing.executors import Workload
from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions

SHAPE = TinyShape(vocabulary=104)
POISON = 100  # a token whose embedding is not finite in a poisoned model
CAPABILITIES = KernelCapabilities(frozenset({"float32", "bfloat16"}), "float32")


def tiny_model(folder: Path) -> LoadedModel:
    """Random weights, written to a folder and read from it."""
    return load_model(write_folder(folder, SHAPE))


def poison(model: LoadedModel) -> LoadedModel:
    """The model with one token that it can't stand."""
    embedding = model.weights["embedding"]
    data = embedding.data.clone()
    data[POISON] = float("nan")
    weight = Weight("embedding", embedding.format, embedding.rows, embedding.columns, data)
    return replace(model, weights={**model.weights, "embedding": weight})


def workload(model: LoadedModel, dtype: str = "float32", **options: Any) -> Workload:
    """The model on the CPU."""
    graph = record(model.config, model.weights)
    return Workload(graph, model.weights, EngineOptions(**options), "cpu", dtype, CAPABILITIES)
