"""Weights on their way to the CPU library, and the structs that name them there."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.graph.ops import Rope
from polyfleet.kernels.cpu.layouts import FORMATS, format_read, readable
from polyfleet.kernels.cpu.library import PfStage, PfWeight
from polyfleet.kernels.cpu.program import Program
from polyfleet.kernels.cpu.stages import NONE, StageKind
from polyfleet.kernels.host_memory import Garbage
from polyfleet.kernels.weights.folder_blocks import FOLDER
from polyfleet.kernels.weights.weight import Weight, WeightFormat, Weights

PACKED = (StageKind.LINEAR, StageKind.EXPERTS, StageKind.HEAD_LINEAR)  # whose weights are

Int32s = NDArray[np.int32]


class Packing:
    """Numbers the weights that programs name, once for each use, and keeps their memory until they are packed."""

    def __init__(
        self,
        weights: Weights,
        ropes: tuple[Rope, ...],
        sites: Mapping[str, int],
        spent: Callable[[str], None] | None = None,
    ) -> None:
        self._source, self._spent, self._garbage = weights, spent, Garbage()
        self._ropes = ropes
        self._sites = sites
        self._numbers: dict[tuple[str, bool], int] = {}  # (name, packed)
        self._entries: list[PfWeight] = []
        self._alive: list[tuple[bool, torch.Tensor]] = []
        self._later: dict[int, Weight] = {}  # what is made readable when it is packed, so that it never is all at once
        self._read: dict[int, torch.Tensor] = {}
        self.problem: Exception | None = None  # of `read`

    def read(self, number: int) -> int:
        """Where the data of a weight of `_later` lies, until `done`; 0 where there is a problem."""
        try:
            self._read[number] = readable(self._later[number]).data
        except (ValueError, MemoryError, RuntimeError) as error:
            self.problem = error
            return 0
        return self._read[number].data_ptr()

    def done(self, number: int) -> None:
        """It has been packed."""
        name, size = self._later.pop(number).name, self._read.pop(number).nbytes
        if self._spent is None or (name, False) in self._numbers:
            return
        self._spent(name)
        self._garbage.add(size)

    def program(self, program: Program) -> tuple[Any, Int32s]:
        """The program as structs, and its operands."""
        operands: list[int] = []
        stages = (PfStage * len(program.stages))()
        for at, stage in zip(stages, program.stages, strict=True):
            packed = stage.kind in PACKED
            at.kind, at.input, at.residual, at.residual_out = (
                stage.kind,
                stage.input,
                stage.residual,
                stage.residual_out,
            )
            at.output, at.layer, at.epilogue, at.selected = stage.output, stage.layer, stage.epilogue, stage.selected
            at.eps, at.head_eps, at.factor, at.window = stage.eps, stage.head_eps, stage.factor, stage.window
            at.width, at.first_row = stage.width, stage.first_row
            at.sinks = self._number(stage.sinks, packed=False) if stage.sinks else NONE
            if stage.route:
                for name in ("experts", "top_k", "groups", "top_groups", "group_best", "sigmoid", "renormalise"):
                    setattr(at, name, getattr(stage.route, name))
            if stage.rule:
                for name in {each.name for each in fields(stage.rule)} - {"state"}:
                    setattr(at, name, getattr(stage.rule, name))
            if stage.experts:
                at.experts, at.top_k, at.early = stage.experts.count, stage.experts.top_k, stage.experts.early
            at.norm = self._number(stage.norm, packed=False) if stage.norm else NONE
            norms = [self._number(name, packed=False) for name in stage.head_norms] or [NONE, NONE]
            at.query_norm, at.key_norm = norms
            at.rope = self._ropes.index(stage.rope) if stage.rope else 0
            at.first_operand, at.num_operands = len(operands), len(stage.weights)
            if stage.kind is StageKind.ADAPT:
                rows = [self._source[name].rows for name in stage.weights]
                operands += [*(self._sites[name] for name in stage.weights), *accumulate(rows[:-1], initial=0)]
                continue
            operands += [self._number(name, packed=packed) for name in stage.weights]
            operands += [self._number(name, packed=False) for name in stage.biases] or [NONE] * len(stage.weights)
        return stages, np.array(operands, dtype=np.int32)

    def weights(self) -> Any:
        """All numbered weights as structs."""
        return (PfWeight * len(self._entries))(*self._entries)

    @property
    def num_bytes(self) -> int:
        """Of the memory that is kept."""
        return sum(data.nbytes for _, data in self._alive)

    def release(self) -> None:
        """Let go of what has been packed."""
        self._later.clear()
        self._alive = [(packed, data) for packed, data in self._alive if not packed]

    def _number(self, name: str, *, packed: bool) -> int:
        key = (name, packed)
        if key not in self._numbers:
            weight, number = self._source[name], len(self._entries)
            vector = weight.rows == 1 and not packed  # norms and biases are read as float32
            form, address = format_read(weight.format), 0
            if packed and (form is not weight.format or weight.format in FOLDER):
                self._later[number] = weight
            else:
                data = weight.data.float().contiguous() if vector else readable(weight).data.contiguous()
                form, address = WeightFormat.F32 if vector else form, data.data_ptr()
                self._alive.append((packed, data))
            self._numbers[key] = number
            entry = PfWeight(FORMATS[form], weight.rows, weight.columns, packed, address, name.encode())
            self._entries.append(entry)
        return self._numbers[key]
