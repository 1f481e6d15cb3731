"""A first step of one token, before an executor is trusted with requests."""

import numpy as np

from polyfleet.engine.executor import Capacity, Executor
from polyfleet.engine.holdings import Holdings
from polyfleet.engine.request import SequenceRequest
from polyfleet.engine.sequence import Sequence

TIMEOUT_SECONDS = 300.0  # kernels may be compiled for it


def trial(executor: Executor, capacity: Capacity) -> None:
    """Have one token computed and drawn; raises ValueError, or what the executor raises, where that fails."""
    holdings = Holdings(capacity, prefix_cache=False)
    sequence = Sequence(SequenceRequest("trial", (0,)), arrival=0, arrival_seconds=0.0, longest=2)
    holdings.start(sequence, reserved=0)
    pending = executor.launch(holdings.assembler.assemble([(sequence, 1)]))
    executor.draw(pending)
    output = executor.collect(pending, TIMEOUT_SECONDS)
    tokens, faults = np.shape(output.token_ids), np.shape(output.faults)
    if (tokens, faults) != ((1,), (1,)):
        raise ValueError(f"the {executor.name} executor gave {tokens} tokens and {faults} faults for one sequence")
