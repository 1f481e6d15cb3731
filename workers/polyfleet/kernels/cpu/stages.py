"""Stages: what the CPU library runs one after the other, as abi.h has them. Pure."""

from dataclasses import dataclass
from enum import IntEnum, unique

from polyfleet.graph.ops import Experts, Rope, Route, StateSpace

GROUP = 16  # rows of a weight that are computed together, as in kernels.h
NONE = -1


@unique
class StageKind(IntEnum):
    """PfStageKind of abi.h."""

    EMBEDDING = 0
    NORM = 1
    LINEAR = 2
    ROPE_CACHE = 3
    ATTENTION = 4
    SILU_MUL = 5
    SELECT = 6
    ADD = 7
    MUL = 8
    SILU = 9
    RELU = 10
    GELU = 11
    GELU_TANH = 12
    SCALE = 13
    SOFT_CAP = 14
    LAYER_NORM = 15
    ROPE = 16
    HEAD_LINEAR = 17
    LATENT_WRITE = 18
    ROUTE = 19
    EXPERTS = 20
    ARGMAX = 21
    SIGMOID = 22
    CAUSAL_CONV = 23
    DELTA_RULE = 24
    LOOKUP = 25
    ADAPT = 26
    CACHE_WRITE = 27
    SSM_SCAN = 28


@unique
class Epilogue(IntEnum):
    """PfEpilogue of abi.h."""

    STORE = 0
    SILU_MUL = 1
    ROPE_CACHE = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage, over values of a graph or over buffers. NONE stands for no value, "" for no weight."""

    kind: StageKind
    input: int
    output: int
    residual: int = NONE
    residual_out: int = NONE
    norm: str = ""
    eps: float = 0.0  # of the norm
    layer: int = NONE  # whose cache, or whose state
    epilogue: Epilogue = Epilogue.STORE
    selected: bool = False  # its rows are the selected ones; of attention: the rows of its output
    weights: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()  # none, or one for each weight
    rope: Rope | None = None  # of what turns
    width: int = 0  # of a head that turns or is normalised; number of heads of head_linear; taps of causal_conv; of a
    # lookup 1 where positions count
    first_row: int = 0  # of a lookup
    head_norms: tuple[str, ...] = ()  # of queries and keys before they turn; or none
    head_eps: float = 0.0
    window: int = 0  # of attention
    sinks: str = ""  # of attention: a weight
    factor: float = 0.0  # of scale and soft_cap; attention's soft cap; the limit of experts
    route: Route | None = None
    experts: Experts | None = None
    rule: StateSpace | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """Values that it reads."""
        return tuple(value for value in (self.input, self.residual) if value != NONE)

    @property
    def writes(self) -> tuple[int, ...]:
        """Values that it makes."""
        return tuple(value for value in (self.output, self.residual_out) if value != NONE)
