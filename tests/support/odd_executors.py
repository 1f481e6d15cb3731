"""Third parties' executors that fail in every way that one can fail in before it is trusted with requests."""

import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from tests.support.numpy_executor import NumpyExecutor, NumpyStep

from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Capacity, Footprint, Pending, StepOutput
from polyfleet.engine.step.plan import StepPlan
from polyfleet.loading.progress import Progress
from polyfleet.sampling.masks import Masks

GIB = 2**30
closed: list[str] = []  # names of executors that were closed


class Odd(NumpyExecutor):
    """Tells when it is closed."""

    def close(self) -> None:
        closed.append(self.name)


class Refuses(Odd):
    name = "refuses"

    @classmethod
    def refuses(cls, workload: Workload) -> str:
        return "it has no head for heights"


class RaisesWhenAsked(Odd):
    name = "raises-when-asked"

    @classmethod
    def refuses(cls, workload: Workload) -> str:
        raise KeyError("heights")


class RaisesFootprint(Odd):
    name = "raises-footprint"

    @classmethod
    def footprint(cls, workload: Workload) -> Footprint:
        raise OSError("no scales\nat all")


class TellsStories(Odd):
    name = "tells-stories"

    @classmethod
    def refuses(cls, workload: Workload) -> str:
        return "it is tired\nand has been for long"


class EndsAll(Odd):
    name = "ends-all"

    @classmethod
    def build(cls, workload: Workload, progress: Progress) -> "NumpyExecutor":
        sys.exit("no licence")


class RaisesWhenBuilt(Odd):
    name = "raises-when-built"

    @classmethod
    def build(cls, workload: Workload, progress: Progress) -> "NumpyExecutor":
        raise ValueError("it is Monday")


class RunsOutOfMemory(Odd):
    name = "runs-out"

    def allocate(self, capacity: Capacity) -> None:
        raise MemoryError


class RaisesInLaunch(Odd):
    name = "raises-in-launch"

    def launch(self, plan: StepPlan) -> NumpyStep:
        raise RuntimeError("no such kernel")


class RaisesInDraw(Odd):
    name = "raises-in-draw"

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        raise RuntimeError("no dice")


class GivesNothing(Odd):
    name = "gives-nothing"

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        output = super().collect(pending, timeout)
        return StepOutput(output.token_ids[:0], output.faults)


class GivesLists(Odd):
    name = "gives-lists"

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        return StepOutput([0], super().collect(pending, timeout).faults)  # type: ignore[arg-type]


class DrawsNumbers(Odd):
    """Would have the engine take its tokens for some that are still being drawn."""

    name = "draws-numbers"

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        output = super().collect(pending, timeout)
        return StepOutput(0 * output.token_ids - 1, output.faults)


class KnowsFaults(Odd):
    name = "knows-faults"

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        output = super().collect(pending, timeout)
        return StepOutput(output.token_ids, output.faults + np.int8(7))


class PoolsLittle(Odd):
    """Whose embeddings would have another width than the model says."""

    name = "pools-little"

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        output = super().collect(pending, timeout)
        return output if output.pooled is None else replace(output, pooled=output.pooled[:, :2])


class PoolsWhole(Odd):
    name = "pools-whole"

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        output = super().collect(pending, timeout)
        return output if output.pooled is None else replace(output, pooled=output.pooled.astype(int)[:, :1])


class PoolsNothing(Odd):
    name = "pools-nothing"

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        return replace(super().collect(pending, timeout), pooled=None)


class ComputesInWords(Odd):
    name = "computes-in-words"
    dtype = "int7"


class SaysLittle(Odd):
    name = "says-little"

    def implementations(self) -> Mapping[str, str]:
        return "all of them"  # type: ignore[return-value]


class IsShallow(Odd):
    """Would never be asked for a step, and its requests would wait for ever."""

    name = "shallow"
    depth = 0


class ClosesBadly(Odd):
    """Fails, and fails again when it is let go."""

    name = "closes-badly"

    def measure(self) -> Footprint:
        raise RuntimeError("no scales")

    def close(self) -> None:
        super().close()
        raise RuntimeError("it is stuck")


class OwesMemory(Odd):
    name = "owes"

    @classmethod
    def footprint(cls, workload: Workload) -> Footprint:
        return Footprint(-5, 100)


class WeighsWords(Odd):
    name = "weighs-words"

    def measure(self) -> Footprint:
        return Footprint("much", 100)  # type: ignore[arg-type]


class IsMuchHeavier(Odd):
    """Says that it takes nothing, and has taken all."""

    name = "heavier"

    @classmethod
    def footprint(cls, workload: Workload) -> Footprint:
        return Footprint(0, 1)

    def measure(self) -> Footprint:
        return Footprint(10_000 * GIB, 100)


ODD = (
    *(Refuses, RaisesWhenAsked, RaisesFootprint, RaisesWhenBuilt, RunsOutOfMemory, RaisesInLaunch, RaisesInDraw),
    *(GivesNothing, GivesLists, DrawsNumbers, KnowsFaults, IsShallow, ClosesBadly, OwesMemory, WeighsWords),
    *(IsMuchHeavier, TellsStories, EndsAll, PoolsLittle, PoolsWhole, PoolsNothing, ComputesInWords, SaysLittle),
)
