"""What several ranks compute equals what one does, for every architecture and every way to share its heads."""

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.quantised_folders import WAYS, write_quantised
from tests.support.shared_models import CPU, STATED, TOLERANCE, compute, workload
from tests.support.thread_ranks import ThreadRanks, on_ranks
from tests.support.tiny_architectures import TINY, make
from torch import Tensor

from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Footprint
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.executors.ranks.group import GroupExecutor, GroupKind
from polyfleet.executors.ranks.parts import keeping, of_rank, weights_of
from polyfleet.graph.ops import OpKind
from polyfleet.graph.shard import NotSharded, shard
from polyfleet.loading.load import load_model
from polyfleet.loading.progress import silent
from polyfleet.loading.quantise import quantise_folder
from polyfleet.models.registry import ARCHITECTURES, recorded
from polyfleet.sampling.device import DeviceSampler
from polyfleet.sampling.draw import PARAMETERS, Draws, parameters
from polyfleet.sampling.group import GroupSampler
from polyfleet.wire.sampling import SamplingParams

TOGETHER = ("olmo2", "olmo3", "olmoe", "flexolmo", "minimax-m2")  # norms of all heads of a row need them all


def check_equal(work: Workload, size: int) -> None:
    expected = compute(work)
    for found in on_ranks(size, lambda ranks: compute(replace(of_rank(work, ranks.rank, size), ranks=ranks))):
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_ranks_equal_one(name: str) -> None:
    work = workload(name)
    check_equal(work, 2)
    sharded = shard(work.graph, 0, 2)
    kinds = [op.kind for op in sharded.graph.ops]
    together = name in TOGETHER
    single = together or name == "nemotron_h"  # whose layers are one branch each
    mixing = (1 if single else 2) * STATED["num_hidden_layers"] - kinds.count(OpKind.CAUSAL_CONV)
    assert kinds.count(OpKind.ALL_REDUCE) >= mixing, "attention and MLP or experts are shared"
    headless = work.graph.widths[work.graph.logits] == work.graph.widths[work.graph.hidden]
    assert kinds.count(OpKind.ALL_GATHER) == (0 if headless else 1)
    halves = {max(1, cache.heads // (1 if together else 2)) for cache in work.graph.caches}
    assert {cache.heads for cache in sharded.graph.caches} == halves
    assert set(sharded.copies) == ({2} if together or any(cache.latent for cache in work.graph.caches) else {1})


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_which_executor_runs_an_architecture_alone_and_in_ranks(name: str) -> None:
    """The CPU library has no sums over processes; all else runs."""
    alone = workload(name, intermediate_size=48, moe_intermediate_size=32)  # which the CPU library's experts divide
    ranks = replace(alone, options=replace(alone.options, tensor_parallel=2))
    assert {kind.name: kind.refuses(alone) for kind in (EagerExecutor, PersistentExecutor)} == {
        "eager": "",
        "persistent": "",
    }
    assert {kind.name: GroupKind(kind, "model").refuses(ranks) for kind in (EagerExecutor, PersistentExecutor)} == {
        "eager": "",
        "persistent": "the persistent executor does not compute in a group of ranks",
    }


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (8, 1)])
@pytest.mark.parametrize("tied", [False, True])
def test_four_ranks_share_heads_or_have_copies(heads: int, kv_heads: int, tied: bool) -> None:
    changes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "tie_word_embeddings": tied}
    check_equal(workload("llama", attention_bias=True, mlp_bias=True, **changes), 4)


def test_a_vocabulary_that_leaves_a_rest_is_whole_on_each_rank() -> None:
    work = workload("llama", vocab_size=49)
    check_equal(work, 2)
    assert OpKind.ALL_GATHER not in {op.kind for op in shard(work.graph, 1, 2).graph.ops}


@pytest.mark.parametrize(
    ("size", "changes", "sentence"),
    [
        (3, {}, "the model's 4 heads can't be shared evenly by 3 ranks"),
        (3, {"num_attention_heads": 6}, "the model's 2 KV heads can't be shared evenly by 3 ranks"),
        (8, {}, "the model's 4 heads can't be shared evenly by 8 ranks"),
        (4, {"intermediate_size": 42}, "42 columns can't be shared evenly by 4 ranks"),
    ],
)
def test_what_can_not_be_shared_evenly_is_refused(size: int, changes: dict[str, int], sentence: str) -> None:
    with pytest.raises(NotSharded, match=sentence):
        shard(workload("llama", **changes).graph, 0, size)


def test_a_recorded_graph_without_files_is_refused() -> None:
    """Else ranks would look for a model in the folder that they run in."""
    refused = GroupKind(EagerExecutor, "").refuses(workload("llama"))
    assert refused == "each rank reads the model's files, and a recorded graph has none"


def test_a_rank_has_its_part_of_the_weights_and_all_ranks_together_have_all() -> None:
    work = workload("llama")
    parts = [of_rank(work, rank, 2).weights for rank in range(2)]
    matrices = {name for name, weight in work.weights.items() if weight.rows > 1} - {"embedding"}
    for name in matrices:
        mine = [next(each for key, each in part.items() if key.startswith(f"{name}[")) for part in parts]
        axis = 0 if mine[0].rows < work.weights[name].rows else 1
        assert torch.equal(torch.cat([each.data for each in mine], axis), work.weights[name].data), name
        assert all(each.data.untyped_storage().data_ptr() == work.weights[name].data.data_ptr() for each in mine)


def test_a_group_of_one_computes_the_graph_itself() -> None:
    graph = workload("llama").graph
    assert shard(graph, 0, 1).graph is graph


def test_a_layer_that_ranks_do_not_know_is_whole_on_each() -> None:
    """Whatever ops a model adds, it is right, if no faster."""
    work = workload("llama")
    queries = {op.inputs[0] for op in work.graph.ops if op.kind is OpKind.PAGED_ATTENTION}
    ops = tuple(
        replace(op, kind=OpKind.ARGMAX) if op.kind is OpKind.ROPE and op.outputs[0] in queries else op
        for op in work.graph.ops
    )
    sharded = shard(replace(work.graph, ops=ops), 0, 2)
    assert sharded.copies == (2, 2)
    assert sharded.graph.caches == work.graph.caches


def test_ranks_meet_as_often_as_the_graph_says() -> None:
    work = workload("llama")

    def calls(ranks: ThreadRanks) -> int:
        compute(replace(of_rank(work, ranks.rank, 2), ranks=ranks))
        return ranks.meeting.calls

    assert set(on_ranks(2, calls)) == {3 * 5}


def test_rank_0_draws_and_the_others_are_told() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    wanted = np.full(5, np.array(parameters(SamplingParams(temperature=1.0, seed=3)), dtype=PARAMETERS))
    draws = Draws(wanted, np.arange(5), np.arange(5))
    alone = DeviceSampler(CPU, 40).draw(logits, draws).token_ids

    def drawn(ranks: ThreadRanks) -> Tensor:
        mine = draws if ranks.rank == 0 else replace(draws, parameters=np.zeros(5, dtype=PARAMETERS))
        return GroupSampler(DeviceSampler(CPU, 40), ranks).draw(logits, mine).token_ids

    assert all(torch.equal(found, alone) for found in on_ranks(3, drawn))


@pytest.mark.parametrize("experts", [False, True])
def test_a_rank_keeps_its_part_of_a_quantised_folder(experts: bool, tmp_path: Path) -> None:
    """As if it had read the whole, and no more of it: experts that lie one by one, too."""
    if experts:
        make(TINY["gpt-oss"], tmp_path / "dense")
        quantise_folder(tmp_path / "dense", tmp_path / "model", 8, 0, silent)
    else:
        write_quantised(tmp_path / "model", WAYS["int8 channels"])
    whole = load_model(tmp_path / "model")
    blocks = [name for name, weight in whole.weights.items() if weight.format.quantised]
    for rank in range(2):
        mine = shard(recorded(whole.config)[0], rank, 2)
        kept = load_model(tmp_path / "model", keeping=lambda _, mine=mine: keeping(mine)).weights  # type: ignore[misc]
        expected = weights_of(mine, whole.weights)
        assert kept.keys() == expected.keys()
        for name, weight in kept.items():
            assert replace(weight, data=None) == replace(expected[name], data=None)  # type: ignore[arg-type]
            assert torch.equal(weight.data, expected[name].data), name
        held = {name: each for name, each in kept.items() if each.format.quantised}
        assert len(blocks) * (2 / 3 if experts else 1) <= len(held)
        for name, each in held.items():
            assert each.data.untyped_storage().nbytes() * 2 == whole.weights[name.partition("[")[0]].data.nbytes


def test_a_group_takes_what_its_greediest_rank_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of everything, recurrent states included: by these sizing knows that prefixes can't be reused."""
    mine, theirs = Footprint(7, 3, 5, 11, 2), Footprint(6, 4, 9, 11, 0)
    answer = {"footprint": asdict(theirs), "free_bytes": 0}
    monkeypatch.setattr(GroupExecutor, "_together", lambda *_: (mine, [(answer, ())]))
    group: Any = object.__new__(GroupExecutor)
    group._executor, group._shared, group._free_bytes = SimpleNamespace(measure=None), True, 0
    assert group.measure() == Footprint(7, 4, 9, 11, 2)


@pytest.mark.parametrize(
    ("lost", "depth", "freed"), [("rank 1 of 2 has gone", 2, False), ("", 2, True), ("gone", 1, True)]
)
def test_a_device_that_waits_for_a_lost_rank_is_left_alone(lost: str, depth: int, freed: bool) -> None:
    """Freeing its memory waits for its work, which a sum over a rank that is gone never ends."""
    calls: list[str] = []
    group: Any = GroupExecutor.__new__(GroupExecutor)
    group.depth, group._folder = depth, ""
    group._members = SimpleNamespace(lost=lost, close=lambda: calls.append("ranks"))
    group._executor = SimpleNamespace(close=lambda: calls.append("device"))
    group._ranks = SimpleNamespace(leave=lambda: calls.append("group"))
    group.close()
    assert calls == (["ranks", "device", "group"] if freed else ["ranks"])
