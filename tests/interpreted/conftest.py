"""Tests of Triton kernels under its interpreter, on the CPU: they need a process of their own, with TRITON_INTERPRET=1.

`tests/unit/kernels/test_triton.py` starts it.
"""

import importlib
import os
from dataclasses import replace
from typing import Any

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]


def accept_numpy_scalars() -> None:
    """NumPy from 2.4 on makes no int of an array of one element, as the interpreter's range() over tensors asks for."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def multiply_bfloat16() -> None:
    """The interpreter takes bfloat16 numbers' bits for integers where it multiplies matrices."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    language: Any = importlib.import_module("triton.language")
    builder = interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def widened(self: Any, given: Any) -> Any:
        return self.create_fp_ext(given, language.float32) if given.dtype == language.bfloat16 else given

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return multiply(self, widened(self, a), widened(self, b), *others)

    builder.create_dot = create_dot


if INTERPRETED:
    pytest.importorskip("triton")
    accept_numpy_scalars()
    multiply_bfloat16()


@pytest.fixture
def undivided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode attention in one part, where a test runs whole models: the interpreter pays for each, however empty."""
    tuned = importlib.import_module("polyfleet.kernels.triton.tuning").tuning
    for name in ("attention", "narrow"):
        module = importlib.import_module(f"polyfleet.kernels.triton.{name}")
        monkeypatch.setattr(module, "tuning", lambda device: replace(tuned(device), programs=1))
