"""The shared library of the CPU library: found beside this file, loaded by ctypes; structs mirror abi.h."""

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint8, c_uint32, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

NAME = "libpolyfleet_cpu.dylib" if sys.platform == "darwin" else "libpolyfleet_cpu.so"
PATH = Path(__file__).parent / NAME

ABI = 14  # PF_ABI of abi.h
NO_MEMORY = -2  # PfResult of abi.h
Int32s = POINTER(c_int32)
READ = ctypes.CFUNCTYPE(c_void_p, c_int32)
DONE = ctypes.CFUNCTYPE(None, c_int32)


class LibraryUnavailable(RuntimeError):
    """The CPU library can't be used here. The message is one sentence that says why and what to do."""


class PfWeight(ctypes.Structure):
    """A weight in the format of its file."""

    _fields_ = [
        *((name, c_int32) for name in ("format", "rows", "columns", "packed")),
        ("data", c_void_p),
        ("name", c_char_p),
    ]


class PfStage(ctypes.Structure):
    """One stage of a program."""

    _fields_ = [
        *((name, c_int32) for name in ("kind", "input", "residual", "residual_out", "output", "norm", "layer")),
        *((name, c_int32) for name in ("epilogue", "selected", "first_operand", "num_operands")),
        *((name, c_int32) for name in ("sinks", "query_norm", "key_norm", "rope", "window")),
        *((name, c_int32) for name in ("width", "first_row", "experts", "top_k", "groups", "top_groups", "group_best")),
        *((name, c_int32) for name in ("sigmoid", "renormalise", "early")),
        *((name, c_int32) for name in ("key_heads", "value_heads", "key_width", "value_width", "turns")),
        *((name, c_float) for name in ("eps", "head_eps", "factor")),
    ]


class PfModel(ctypes.Structure):
    """Everything that programs of one model share."""

    _fields_ = [
        *((name, c_int32) for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "value_dim")),
        *((name, c_int32) for name in ("num_weights", "num_buffers", "num_ropes", "num_states")),
        *((name, c_int32) for name in ("causal", "wide", "codes")),
        ("attention_scale", c_float),
        ("inverse_frequencies", POINTER(c_float)),
        ("amplitudes", POINTER(c_float)),
        ("weights", POINTER(PfWeight)),
        ("widths", Int32s),
        ("states", Int32s),
        ("local", Int32s),
        ("read", READ),
        ("done", DONE),
    ]


class PfStep(ctypes.Structure):
    """One step; the same struct may serve one after the other."""

    _fields_ = [
        *((name, c_int32) for name in ("num_rows", "num_sequences", "num_draws", "num_cleared")),
        *((name, c_int32) for name in ("num_slots", "table_width", "logits")),
        *((name, c_void_p) for name in ("token_ids", "slots", "row_starts", "lengths", "draw_rows", "cleared_blocks")),
        *((name, c_void_p) for name in ("block_tables", "adapters", "greedy_ids", "faults", "given", "given_rows")),
        ("num_given", c_int32),
    ]


class PfLowRank(ctypes.Structure):
    """What an adapter adds to one weight."""

    _fields_ = [
        *((name, c_int32) for name in ("site", "rank", "rows", "columns", "bits")),
        *((name, c_void_p) for name in ("down", "up")),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "pf_error": (c_char_p, []),
    "pf_instruction_sets": (c_char_p, []),
    "pf_linear_implementation": (c_char_p, [c_char_p, c_int32]),
    "pf_executor_create": (c_void_p, [POINTER(PfModel), c_char_p, c_int32]),
    "pf_executor_destroy": (None, [c_void_p]),
    "pf_executor_add_program": (c_int32, [c_void_p, POINTER(PfStage), c_int32, Int32s, c_int32]),
    "pf_executor_packed_bytes": (c_int64, [c_void_p]),
    "pf_executor_allocate": (c_int32, [c_void_p, c_int32, c_int32, c_int32, c_int32, c_int32]),
    "pf_executor_set_adapter": (c_int32, [c_void_p, c_int32, POINTER(PfLowRank), c_int32]),
    "pf_executor_keys": (POINTER(c_uint8), [c_void_p]),
    "pf_executor_values": (POINTER(c_uint8), [c_void_p]),
    "pf_executor_step": (c_int32, [c_void_p, c_int32, POINTER(PfStep)]),
    "pf_scan": (c_uint32, [c_void_p, c_int64, c_int32, c_void_p, c_void_p]),
    "pf_executor_buffer": (POINTER(c_float), [c_void_p, c_int32]),
}


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The library, loaded once; raises LibraryUnavailable."""
    if not PATH.exists():
        raise LibraryUnavailable(f"{NAME} was not built: install a C++ compiler and install polyfleet again")
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        raise LibraryUnavailable(f"{PATH} can't be loaded ({error}): install polyfleet again on this machine") from None
    found = library.pf_abi() if hasattr(library, "pf_abi") else 0
    if found != ABI:
        problem = f"{PATH} was built for another version (ABI {found}, not {ABI})"
        raise LibraryUnavailable(f"{problem}: install polyfleet again")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def instruction_sets() -> tuple[str, ...]:
    """Instruction sets that this machine runs, best first; the last is "plain"."""
    names: bytes = load().pf_instruction_sets()
    return tuple(names.decode().split())


def last_error() -> str:
    """Why the last call failed."""
    message: bytes = load().pf_error()
    return message.decode()


def check(result: int) -> int:
    """The result of a call that may fail; raises MemoryError, or ValueError for what it refused."""
    if result >= 0:
        return result
    raise MemoryError(last_error()) if result == NO_MEMORY else ValueError(last_error())
