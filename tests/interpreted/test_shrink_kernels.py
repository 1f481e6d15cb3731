"""Low-rank adapters of steps with few rows, interpreted: products that take what these add, against references."""

from dataclasses import replace

import pytest
import torch
from tests.interpreted.test_kernels import KERNELS, assert_close, run
from tests.interpreted.test_narrow_kernels import REFERENCES, cut, matrix
from tests.support.kernel_cases import make_context, make_step

from polyfleet.graph.adapt import adapted
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Norm, Op, OpKind
from polyfleet.kernels.adapters import AdapterTables, LowRank
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.triton import shrink
from polyfleet.kernels.triton.linear import Operands, linear
from polyfleet.kernels.triton.matrices import Matrix
from polyfleet.kernels.triton.shrink import Grown
from polyfleet.kernels.triton.tuning import Tuning
from polyfleet.kernels.weights.packed import unpack

COLUMNS, EPS = 80, Norm(1e-5)
ROWS = {"layers.0.q": 44, "layers.0.k": 12, "layers.0.v": 12, "layers.0.o": 64, "layers.0.gate": 48, "layers.0.up": 48}
Q, K, V, OUT, GATE, UP = ROWS
OPS = {
    "norm_linear": Op(OpKind.NORM_LINEAR, (1, 2), (4,), (Q, K, V), ("b", "c", "c"), EPS),
    "linear_add": Op(OpKind.LINEAR_ADD, (1, 2), (4, 5, 6), (OUT, "layers.0.norm")),
    "norm_silu_mul": Op(OpKind.NORM_SILU_MUL, (1, 2), (4,), (GATE, UP), attributes=EPS),
}


def context_of(rank: int) -> KernelContext:
    """Three adapters: of full rank, of a lower one for some weights alone, and one that changes nothing."""
    weights = {name: torch.randn(rows, COLUMNS) / 9 for name, rows in ROWS.items()}
    weights |= {"layers.0.norm": 1 + 0.3 * torch.randn(64), "b": torch.randn(44), "c": torch.randn(12)}
    context = make_context(weights=weights)
    plain = tuple(Op(OpKind.ADAPT, (1, 1), (2,), names) for names in ((Q, K, V), (OUT,), (GATE, UP)))
    graph = KernelGraph(plain, (1, COLUMNS, 1), (), (2,))
    tables = AdapterTables(graph, context.weights, 3, rank, torch.float32, torch.device("cpu"))
    for number, (ranks, names) in enumerate(((rank, tuple(ROWS)), (3, (K, OUT, UP)))):
        low = {name: LowRank(torch.randn(ranks, COLUMNS) / 9, torch.randn(ROWS[name], ranks) / 2) for name in names}
        tables.set(number, low)
    return replace(context, adapters=tables)


@pytest.mark.parametrize(("name", "rows", "rank", "live"), [
    ("norm_linear", 5, 8, 2048),
    ("norm_linear", 1, 5, 512),
    ("linear_add", 3, 8, 512),
    ("norm_silu_mul", 4, 16, 1024),
])  # fmt: skip
def test_products_take_what_each_rows_adapter_adds(
    name: str, rows: int, rank: int, live: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its rank at once, or some."""
    monkeypatch.setattr(shrink, "LIVE", {4: live})
    torch.manual_seed(rows * rank)
    context, adapters = context_of(rank), torch.tensor([0, -1, 1, 2, 0][:rows], dtype=torch.int32)
    step = replace(make_step([(1, 0)] * rows), adapters=adapters, host_adapters=adapters.numpy())
    x = torch.randn(rows, COLUMNS)
    other = torch.randn(rows, 64) if name == "linear_add" else 40 * (0.5 + torch.rand(rows, 2))
    shrunk, product = adapted(KernelGraph((OPS[name],), (1, COLUMNS, 1, 1, 1, 1, 1), (), (4,))).ops
    assert shrunk.kind is OpKind.SHRINK
    low = run(KERNELS, shrunk, context, step, x)
    found = run(KERNELS, product, context, step, x, other, low)
    assert_close(low, run(REFERENCES, shrunk, context, step, x))
    expected = run(REFERENCES, product, context, step, x, other, low)
    plain = run(REFERENCES, OPS[name], context, step, x, other)
    firsts = [each[0] if isinstance(each, tuple) else each for each in (found, expected, plain)]
    assert_close(firsts[0], firsts[1])
    same = (firsts[1] == firsts[2]).all(1)
    assert same.tolist() == [int(each) in (-1, 2) for each in adapters]


@pytest.mark.parametrize(("kind", "columns", "tuned"), [
    ("dense", 192, cut(32, 64, 8)),
    ("fp8", 320, cut(32, 64, 1)),
    ("int4", 256, replace(cut(32, 64, 8), bytes=True)),
])  # fmt: skip
def test_first_programs_make_what_the_others_add(
    kind: str, columns: int, tuned: Tuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns in parts and pieces by turns; a row that is not finite is waited for no longer, and others go on."""
    monkeypatch.setattr(shrink, "COLUMNS", 64)
    monkeypatch.setattr(shrink, "PROGRAMS", 3)
    torch.manual_seed(columns)
    made, adapters = matrix(kind, 40, columns), torch.tensor([1, -1, 0, 1], dtype=torch.int32)
    dense = made if isinstance(made, torch.Tensor) else unpack(made, torch.float32)
    down, up = torch.randn(2, 10, columns) / columns**0.5, torch.randn(2, 40, 5)
    x = torch.randn(4, columns)
    x[2, 7] = torch.nan
    if tuned.bytes:
        down, up, x = (each.bfloat16() for each in (down, up, x))
    grown = Grown(torch.full((4, 10), torch.nan), down, up, adapters, (5, 28, 40))
    found = linear(Matrix.of(made, torch.device("cpu")), tuned, x, Operands(grown=grown))[0].float()
    low = torch.einsum("tkc,tc->tk", down[adapters.clamp(min=0).long()].float(), x.float())
    wide = up[adapters.clamp(min=0).long()].float()
    parts = zip(torch.split(wide, [28, 12], 1), torch.split(low, 5, 1), strict=True)
    added = torch.cat([torch.einsum("tok,tk->to", part, each) for part, each in parts], 1)
    expected = x.float() @ dense.T + added * (adapters >= 0)[:, None]
    assert not found[2].isfinite().any()
    others = [0, 1, 3]
    assert (found - expected)[others].norm() < (2**-7 if tuned.bytes else 2e-5) * expected[others].norm()
