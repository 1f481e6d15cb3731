"""First steps of one token, before an executor is trusted with requests."""

from collections.abc import Mapping

import numpy as np

from polyfleet.engine.batching.holdings import Holdings
from polyfleet.engine.choosing.sizing import DTYPE_BYTES
from polyfleet.engine.executor import Capacity, Executor, Fault, StepOutput
from polyfleet.engine.step.plan import StepPlan
from polyfleet.engine.step.sequence import Sequence
from polyfleet.wire.requests import Pooling, SequenceRequest

TIMEOUT_SECONDS = 300.0  # kernels may be compiled for it


def trial(executor: Executor, capacity: Capacity, vocabulary_size: int, hidden_size: int) -> None:
    """Have one token drawn and one pooled; raises ValueError, or what the executor raises, where that fails."""
    name, depth = executor.name, executor.depth
    if not (isinstance(name, str) and name):
        raise ValueError(f"an executor can't be called {name!r}")
    if not (isinstance(depth, int) and depth >= 1):
        raise ValueError(f"the {name} executor can't have {depth!r} steps under way")
    if executor.dtype not in DTYPE_BYTES:
        raise ValueError(f"the {name} executor can't compute in {executor.dtype!r}: {', '.join(DTYPE_BYTES)} are known")
    if not isinstance(names := executor.implementations(), Mapping):
        raise ValueError(f"the {name} executor gave {names!r} as its ops' implementations, which is no mapping")
    _check(name, _step(executor, capacity, None), vocabulary_size)
    _check_pooled(name, _step(executor, capacity, Pooling.LAST), hidden_size)


def try_drafts(executor: Executor, capacity: Capacity, vocabulary_size: int) -> None:
    """Have drafts verified behind a token; raises ValueError, or what the executor raises, where that fails."""
    output = _step(executor, capacity, None, capacity.drafts)
    _check(executor.name, output, vocabulary_size, 1 + capacity.drafts)


def _step(executor: Executor, capacity: Capacity, pooling: Pooling | None, drafts: int = 0) -> StepOutput:
    """Of one sequence with one row, and one for each draft, in the first slot and blocks."""
    holdings = Holdings(capacity, prefix_cache=False)
    request = SequenceRequest("trial", (0,), pooling=pooling)
    sequence = Sequence(request, arrival=0, arrival_seconds=0.0, longest=2 + drafts)
    holdings.start(sequence, reserved=0)
    holdings.grow(sequence, drafts)
    sequence.drafts = (0,) * drafts
    plan: StepPlan = holdings.assembler.assemble([(sequence, 1 + drafts)])
    pending = executor.launch(plan)
    executor.draw(pending)
    return executor.collect(pending, TIMEOUT_SECONDS)


def _check(name: str, output: StepOutput, vocabulary_size: int, number: int = 1) -> None:
    """Raise ValueError unless these are so many tokens of the vocabulary, and one of the faults that there are."""
    for what, values in (("tokens", output.token_ids), ("faults", output.faults)):
        if not (isinstance(values, np.ndarray) and values.dtype.kind in "iu"):
            raise ValueError(f"the {name} executor gave {values!r} as {what}, which is no array of integers")
    tokens, faults = output.token_ids.shape, output.faults.shape
    if (tokens, faults) != ((number,), (1,)):
        raise ValueError(f"the {name} executor gave {tokens} tokens and {faults} faults for one sequence")
    fault = int(output.faults[0])
    for token_id in output.token_ids.tolist():
        if not 0 <= token_id < vocabulary_size:
            raise ValueError(f"the {name} executor drew the token {token_id} of a vocabulary of {vocabulary_size}")
    if fault not in set(Fault):
        raise ValueError(f"the {name} executor reported a fault {fault} that there is not")


def _check_pooled(name: str, output: StepOutput, hidden_size: int) -> None:
    """Raise ValueError unless this is one row of hidden states, and no token."""
    values = output.pooled
    if not (isinstance(values, np.ndarray) and values.dtype.kind == "f" and values.shape == (1, hidden_size)):
        found = f"{values.dtype} {list(values.shape)}" if isinstance(values, np.ndarray) else repr(values)
        raise ValueError(f"the {name} executor pooled {found} where floats [1, {hidden_size}] are wanted")
    if len(output.token_ids):
        raise ValueError(f"the {name} executor drew a token of a sequence that is pooled")
