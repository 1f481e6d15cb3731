"""Embedder: vectors of texts, in this process: no gateway, no worker, no server."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.choosing.machines import open_machine
from polyfleet.engine.engine import Engine
from polyfleet.engine.loader import EngineParts, prepare_engine
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.quantised.eight_bits import in_eight_bits
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest

QUANTIZATIONS = ("int8", "fp8", "int4")

Vectors = NDArray[np.float32]


class Embedder:
    """A model that turns texts into vectors, pooled as its own files say: BERT's kind, or a decoder's hidden states.

        from polyfleet.engine import Embedder

        with Embedder("all-MiniLM-L6-v2") as embedder:
            vectors = embedder.encode(["A cat.", "A dog."])  # float32 [2, 384], each of length 1

    Not thread-safe.
    """

    def __init__(
        self,
        path: str,
        device: str | None = None,
        quantization: str | None = None,
        *,
        autocast: bool = False,
        threads: int = 0,
    ) -> None:
        """Load the model at `path`.

        `device` None: the best there is. `quantization` of matrices: int8, which the CPU library keeps in memory, or
        fp8 and int4, which kernels of GPUs keep. `autocast`: compute in the dtype that the device prefers, which on
        the CPU is float32, else in float32. Raises what `Engine.load` raises, and ValueError where the device can't
        keep what is asked for.
        """
        if quantization not in (None, *QUANTIZATIONS):
            raise ValueError(f"quantization must be None or one of {', '.join(QUANTIZATIONS)}, not {quantization!r}")
        on_gpu = quantization if quantization in ("fp8", "int4") else "dense"
        options = EngineOptions(device=device or "auto", weights=on_gpu, threads=threads)
        options = _with_library(options) if quantization == "int8" else options
        if not autocast and open_machine(options.device)[0].device != "cpu":  # where the library computes in float32
            options = replace(options, dtype="float32")
        parts = _load(path, quantization, options)
        if not autocast and parts.executor.dtype != "float32" and quantization is None:  # no library, which has it
            parts.executor.close()
            parts = _load(path, quantization, replace(options, dtype="float32"))
        self._engine = Engine.of(parts)
        if parts.model.tokenizer is None or parts.model.config.cross_encoder:
            self._engine.close()
            lacks = parts.model.tokenizer is None
            problem = "has no tokenizer, which texts need" if lacks else "is a cross encoder, which makes no embeddings"
            raise ValueError(f"{path}: {problem}")
        _check_kept(self._engine, quantization)
        self._pooling = parts.model.config.pooling or Pooling.MEAN
        self._normalized = parts.model.config.normalized
        self._begin, self._tokenizer = _tokenizer(parts.model.tokenizer.document, parts.options.context_length)
        self._ids = count()

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        return self._engine.facts.hidden_size

    @property
    def dtype(self) -> str:
        """That is computed in."""
        return self._engine.facts.dtype

    def encode(self, texts: str | Sequence[str], normalize: bool = True, batch_size: int = 32) -> Vectors:
        """Vectors [len(texts), dimensions] in float32, or [dimensions] of a single text.

        `normalize` scales each to length 1, as models whose files want it always do. Texts beyond the model's context
        are cut at it. At most `batch_size` are computed together. Raises RuntimeError where computing fails.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
        wanted = [texts] if isinstance(texts, str) else list(texts)
        vectors = np.zeros((len(wanted), self.dimensions), dtype=np.float32)
        ids = [(*self._begin, *each.ids) for each in self._tokenizer.encode_batch(wanted)]
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))  # like lengths share steps
        for first in range(0, len(order), batch_size):
            self._compute({index: ids[index] for index in order[first : first + batch_size]}, vectors)
        if normalize or self._normalized:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.where(lengths == 0, 1, lengths)
        return vectors[0] if isinstance(texts, str) else vectors

    def close(self) -> None:
        """Free the device's memory at once."""
        self._engine.close()

    def __enter__(self) -> "Embedder":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _compute(self, batch: dict[int, tuple[int, ...]], vectors: Vectors) -> None:
        places: dict[str, int] = {}
        for index, token_ids in batch.items():
            if token_ids:  # else there is nothing to compute, and the vector is 0
                places[name := f"text-{next(self._ids)}"] = index
                self._engine.add(SequenceRequest(name, token_ids, pooling=self._pooling))
        while self._engine.has_work:
            for update in self._engine.step():
                if update.error:
                    raise RuntimeError(update.error)
                vectors[places[update.sequence_id]] = update.embedding


def _load(path: str, quantization: str | None, options: EngineOptions) -> EngineParts:
    return prepare_engine(lambda device: _read(path, quantization), options, lambda share, phase: None)


def _read(path: str, quantization: str | None) -> LoadedModel:
    """The model; with int8 all matrices whose rows blocks fit in 8 bits."""
    model = load_model(path)
    if quantization != "int8":
        return model
    weights = {name: in_eight_bits(each) for name, each in model.weights.items()}
    return replace(model, weights=weights)


def _with_library(options: EngineOptions) -> EngineOptions:
    """The options for int8, which the CPU library alone keeps."""
    if options.device.partition(":")[0] not in ("auto", "cpu"):
        raise ValueError(f"int8 stays in memory on the CPU alone; on {options.device} ask for fp8 or int4")
    return replace(options, device="cpu", executor="persistent")


def _check_kept(engine: Engine, quantization: str | None) -> None:
    """Raise ValueError where matrices became dense all the same."""
    if quantization in ("fp8", "int4") and "triton" not in engine.implementations().get("linear", ""):
        device = engine.options.device
        engine.close()
        raise ValueError(f"{quantization} weights are not kept on {device}: kernels of GPUs read them")


def _tokenizer(document: bytes, context_length: int) -> tuple[tuple[int, ...], Any]:
    """The ids before each text that the tokenizer leaves out, and the tokenizer, which cuts at the context."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("texts need the package tokenizers: pip install tokenizers") from None
    assets = json.loads(document)
    tokenizer = Tokenizer.from_str(json.dumps(assets["tokenizer"]))
    bos = tokenizer.token_to_id(assets["bos_token"]) if assets["add_bos"] else None
    begin = () if bos is None else (bos,)
    tokenizer.enable_truncation(context_length - len(begin))
    return begin, tokenizer
