"""Tests of Triton kernels under its interpreter, on the CPU: they need a process of their own, with TRITON_INTERPRET=1.

`tests/unit/kernels/triton/test_interpreted.py` starts it.
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


if INTERPRETED:
    pytest.importorskip("triton")
    accept_numpy_scalars()


@pytest.fixture
def undivided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode attention in one part, where a test runs whole models: the interpreter pays for each, however empty."""
    tuned = importlib.import_module("polyfleet.kernels.triton.tuning").tuning
    for name in ("attention", "narrow"):
        module = importlib.import_module(f"polyfleet.kernels.triton.{name}")
        monkeypatch.setattr(module, "tuning", lambda device: replace(tuned(device), programs=1))
