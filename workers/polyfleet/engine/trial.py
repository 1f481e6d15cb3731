"""A first step of one token, before an executor is trusted with requests."""

import numpy as np

from polyfleet.engine.executor import Capacity, Executor, Fault, StepOutput
from polyfleet.engine.holdings import Holdings
from polyfleet.engine.sequence import Sequence
from polyfleet.wire.requests import SequenceRequest

TIMEOUT_SECONDS = 300.0  # kernels may be compiled for it


def trial(executor: Executor, capacity: Capacity, vocabulary_size: int) -> None:
    """Have one token computed and drawn; raises ValueError, or what the executor raises, where that fails."""
    name, depth = executor.name, executor.depth
    if not (isinstance(name, str) and name):
        raise ValueError(f"an executor can't be called {name!r}")
    if not (isinstance(depth, int) and depth >= 1):
        raise ValueError(f"the {name} executor can't have {depth!r} steps under way")
    holdings = Holdings(capacity, prefix_cache=False)
    sequence = Sequence(SequenceRequest("trial", (0,)), arrival=0, arrival_seconds=0.0, longest=2)
    holdings.start(sequence, reserved=0)
    pending = executor.launch(holdings.assembler.assemble([(sequence, 1)]))
    executor.draw(pending)
    _check(name, executor.collect(pending, TIMEOUT_SECONDS), vocabulary_size)


def _check(name: str, output: StepOutput, vocabulary_size: int) -> None:
    """Raise ValueError unless this is one token of the vocabulary, and one of the faults that there are."""
    for what, values in (("tokens", output.token_ids), ("faults", output.faults)):
        if not (isinstance(values, np.ndarray) and values.dtype.kind in "iu"):
            raise ValueError(f"the {name} executor gave {values!r} as {what}, which is no array of integers")
    tokens, faults = output.token_ids.shape, output.faults.shape
    if (tokens, faults) != ((1,), (1,)):
        raise ValueError(f"the {name} executor gave {tokens} tokens and {faults} faults for one sequence")
    token_id, fault = int(output.token_ids[0]), int(output.faults[0])
    if not 0 <= token_id < vocabulary_size:
        raise ValueError(f"the {name} executor drew the token {token_id} of a vocabulary of {vocabulary_size}")
    if fault not in set(Fault):
        raise ValueError(f"the {name} executor reported a fault {fault} that there is not")
