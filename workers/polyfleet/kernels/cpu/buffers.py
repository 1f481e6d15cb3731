"""Rows of memory that the values of programs take turns in. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from polyfleet.kernels.cpu.stages import NONE, Stage, StageKind


@dataclass(slots=True)
class Buffers:
    """Rows of memory that values take turns in, `widths[b]` columns each. Programs of one model share them."""

    widths: list[int] = field(default_factory=list)


def place(
    stages: list[Stage], widths: tuple[int, ...], kept: Iterable[int], buffers: Buffers, inputs: Iterable[int] = ()
) -> tuple[tuple[Stage, ...], dict[int, int]]:
    """Values to buffers: a buffer is free again behind the last reader of its value, never within one stage."""
    last_reader = {value: number for number, stage in enumerate(stages) for value in (*stage.writes, *stage.reads)}
    last_reader.update(dict.fromkeys(kept, len(stages)))
    free = list(range(len(buffers.widths)))
    placed: dict[int, int] = {NONE: NONE}
    out = []

    def put(value: int) -> None:
        buffer = next((each for each in free if buffers.widths[each] == widths[value]), None)
        if buffer is None:
            buffer = len(buffers.widths)
            buffers.widths.append(widths[value])
        else:
            free.remove(buffer)
        placed[value] = buffer

    for value in inputs:
        put(value)
    for number, stage in enumerate(stages):
        if stage.kind is StageKind.ADAPT:  # adds to what it alone reads
            placed[stage.output] = placed[stage.residual]
        for value in stage.writes:
            if value not in placed:
                put(value)
        source, output, residual = placed[stage.input], placed[stage.output], placed[stage.residual]
        total = placed[stage.residual_out]
        out.append(replace(stage, input=source, output=output, residual=residual, residual_out=total))
        ended = {value for value in (*stage.reads, *stage.writes) if last_reader[value] == number}
        if stage.kind is StageKind.ADAPT:
            ended.discard(stage.residual)
        free += {placed[value] for value in ended}
    return tuple(out), placed
