"""Steps are laid out from block tables, and travel to the device in one piece."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from tests.support.kernel_cases import attention_over, make_context
from tests.support.kernel_cases import make_step as make_case

from polyfleet.kernels.step import lay_out, make_step, upload
from polyfleet.kernels.torch import batched

CPU = torch.device("cpu")


def test_make_step_lays_out_rows() -> None:
    step = make_step([([7], 5, [3, 9, 1]), ([1, 2, 3], 3, [4, 0, 8]), ([5, 6], 0, [2])], 4, CPU)
    assert step.token_ids.tolist() == [7, 1, 2, 3, 5, 6]
    assert step.positions.tolist() == [5, 3, 4, 5, 0, 1]
    assert step.places.tolist() == [9 * 4 + 1, 4 * 4 + 3, 0 * 4 + 0, 0 * 4 + 1, 2 * 4, 2 * 4 + 1]
    assert step.selected.tolist() == [0, 3, 5]
    assert step.tables.tolist() == [[3, 9], [4, 0], [2, 2]]  # cut to what the longest needs, filled with the last one
    assert step.lengths.tolist() == step.host_lengths.tolist() == [6, 6, 2]
    assert step.row_starts.tolist() == step.host_row_starts.tolist() == [0, 1, 4, 6]
    assert (step.num_rows, step.num_sequences, step.num_single) == (6, 3, 1)


def test_a_sequence_reads_the_table_of_its_slot() -> None:
    tables = np.array([[9, 9, 9], [5, 6, 7], [9, 9, 9], [1, 2, 3]], dtype=np.int32)
    rows = (np.array([0, 0, 0]), np.array([8, 3, 4]), np.array([0, 2]))
    layout = lay_out(rows, np.array([3, 1]), np.array([9, 5]), np.array([0, 1, 3]), tables, 4)
    step, others = layout.send(CPU, np.array([4, 1, 2]), np.array([], dtype=np.int32), np.array([8], dtype=np.int32))
    assert step.places.tolist() == [3 * 4, 5 * 4 + 3, 6 * 4]
    assert (step.blocks.tolist(), step.offsets.tolist()) == ([3, 5, 6], [0, 3, 0])
    assert step.tables.tolist() == [[1, 2, 3], [5, 6, 6]]
    assert [each.tolist() for each in others] == [[4, 1, 2], [], [8]]
    tensors = (getattr(step, each.name) for each in fields(step))
    assert not any(each.data_ptr() % 16 for each in tensors if isinstance(each, torch.Tensor))


def test_a_large_group_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for the keys of a group is bounded: 4 tables of 5 blocks of 256 bytes are read two at a time."""
    context, step = make_context(), make_case([(1, 17), (1, 2), (1, 9), (1, 14)])
    whole = batched.plan_attention(context, step, attention_over())
    assert [each.rows for each in whole.decodes] == [slice(0, 4)]
    monkeypatch.setattr(batched, "GATHERED_BYTES", 2 * 5 * 256)
    parts = batched.plan_attention(context, step, attention_over())
    assert [each.rows for each in parts.decodes] == [slice(0, 2), slice(2, 4)]
    assert [len(each.gather) for each in parts.decodes] == [2 * 2 * 2 * 5, 2 * 2 * 2 * 4]


def test_what_is_uploaded_is_a_copy() -> None:
    values = np.arange(3)
    moved = upload(values, CPU)
    values[:] = 7
    assert moved.tolist() == [0, 1, 2]
