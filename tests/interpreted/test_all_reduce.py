"""The one-shot all-reduce, seen from one rank: the other's memory and flags are laid out as if it had come already."""

import pytest
import torch

from polyfleet.kernels.triton.all_reduce import MOST, PROGRAMS, REGION, TILE, one_shot

SIZE = 2


@pytest.mark.parametrize(("rank", "count"), [(0, TILE), (1, 2 * TILE + 5)])
def test_two_launches_sum_what_both_ranks_laid_down(rank: int, count: int) -> None:
    data = [torch.full((2 * MOST,), float("nan"), dtype=torch.float16) for _ in range(SIZE)]
    flags = [torch.zeros(PROGRAMS * SIZE, dtype=torch.int32) for _ in range(SIZE)]
    epochs = torch.zeros(PROGRAMS, dtype=torch.int32)
    addresses = [torch.tensor([each.data_ptr() for each in tensors]) for tensors in (data, flags)]
    programs = -(-count // TILE)
    for epoch in (1, 2):
        mine, theirs = (torch.randn(count).half() for _ in range(SIZE))
        other = data[1 - rank].view(PROGRAMS, 2, REGION)[:programs, epoch & 1, :TILE]
        other.copy_(torch.nn.functional.pad(theirs, (0, programs * TILE - count)).view(programs, TILE))
        flags[rank].view(PROGRAMS, SIZE)[:programs, 1 - rank] = epoch
        total = one_shot(mine, addresses[0], addresses[1], epochs, rank, SIZE)
        assert torch.equal(total, (mine.float() + theirs.float()).half())
        assert flags[1 - rank].view(PROGRAMS, SIZE)[:programs, rank].tolist() == [epoch] * programs
        assert epochs[:programs].tolist() == [epoch] * programs
        assert not epochs[programs:].any()
