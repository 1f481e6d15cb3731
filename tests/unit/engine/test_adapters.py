"""Adapters in an engine: the tokens of merged weights, in any company; prefixes of their own; loaded and dropped."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.peft_folders import low_rank_tensors, merged, write_adapter
from tests.support.tiny_models import TinyShape, random_tensors, write_folder

from polyfleet.engine import Engine
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest

SHAPE = TinyShape(vocabulary=104)
BASE = random_tensors(SHAPE)
ADAPTERS = [low_rank_tensors(BASE, rank=rank, seed=rank, size=0.3) for rank in (3, 8)]  # one that fills no group
ONLY_V = low_rank_tensors(BASE, rank=4, seed=9, targets=("v_proj", "down_proj"), size=0.3)
TOLERANCE = {"eager": 1e-4, "persistent": 0.03}  # of log probabilities: the CPU library's KV cache has half precision
PROMPT = tuple(range(3, 40))


@dataclass(frozen=True, slots=True)
class Rig:
    """An engine with two adapters, and engines of models that these were merged into."""

    name: str
    engine: Engine
    fingerprints: list[str]
    merged: list[Engine]
    folder: Path


def load(folder: Path, executor: str, **options: int) -> Engine:
    sizes = {"context_length": 128, "max_sequences": 4, "threads": 2, **options}
    return Engine.load(str(folder), EngineOptions(device="cpu", dtype="float32", executor=executor, **sizes))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["eager", "persistent"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("adapters")
    engine = load(write_folder(folder / "base", SHAPE, BASE), request.param, max_adapters=2, max_rank=8)
    whole = []
    for number, tensors in enumerate(ADAPTERS):
        write_adapter(folder / str(number), tensors)
        write_folder(folder / f"merged{number}", SHAPE, merged(BASE, tensors, 2.0))
        whole.append(load(folder / f"merged{number}", request.param))
    write_adapter(folder / "v", ONLY_V)
    prints = [engine.add_adapter(str(folder / str(number))).fingerprint for number in range(2)]
    yield Rig(request.param, engine, prints, whole, folder)
    for each in (engine, *whole):
        each.close()


def run(engine: Engine, *requests: SequenceRequest) -> dict[str, list[SampledToken]]:
    tokens: dict[str, list[SampledToken]] = {}
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for update in engine.step():
            assert not update.error
            tokens.setdefault(update.sequence_id, []).extend(update.tokens)
        engine.check()
    return tokens


def ask(name: str, adapter: str = "", prompt: tuple[int, ...] = PROMPT) -> SequenceRequest:
    return SequenceRequest(name, prompt, max_tokens=8, logprobs=0, adapter=adapter)


def assert_alike(found: list[SampledToken], wanted: list[SampledToken], tolerance: float) -> None:
    assert [each.token_id for each in found] == [each.token_id for each in wanted]
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in wanted], abs=tolerance)


def test_merged_weights_and_any_company(rig: Rig) -> None:
    """Prompts of several lengths beside decodes, of two adapters and of none."""
    first, second = rig.fingerprints
    others = ask("c", first, PROMPT[::-1]), ask("d", "", PROMPT[:9])
    mixed = run(rig.engine, ask("a", first), ask("b", second), *others)
    for name, engine in zip("ab", rig.merged, strict=True):
        assert_alike(mixed[name], run(engine, ask(name))[name], TOLERANCE[rig.name])
    assert_alike(mixed["c"], run(rig.merged[0], ask("c", "", PROMPT[::-1]))["c"], TOLERANCE[rig.name])
    for each in (ask("a", first), ask("b", second), others[1]):
        assert_alike(mixed[each.sequence_id], run(rig.engine, each)[each.sequence_id], 1e-4)


def test_embeddings(rig: Rig) -> None:
    for pooling in Pooling:
        vectors = []
        for engine, adapter in ((rig.engine, rig.fingerprints[0]), (rig.merged[0], ""), (rig.engine, "")):
            engine.add(SequenceRequest("e", PROMPT[::2], adapter=adapter, pooling=pooling))
            while engine.has_work:
                vectors += [each.embedding for each in engine.step() if each.embedding]
        assert vectors[0] == pytest.approx(vectors[1], abs=5 * TOLERANCE[rig.name])
        assert vectors[0] != pytest.approx(vectors[2], abs=0.1)


def test_logprobs_of_a_prompt(rig: Rig) -> None:
    def scored(engine: Engine, adapter: str) -> list[float]:
        request = SequenceRequest("s", PROMPT[:11], max_tokens=1, prompt_logprobs=0, adapter=adapter)
        engine.add(request)
        found: list[float] = []
        while engine.has_work:
            found += [token.logprob for update in engine.step() for token in update.prompt_logprobs]
        return found

    wanted = scored(rig.merged[0], "")
    assert len(wanted) == 10
    assert scored(rig.engine, rig.fingerprints[0]) == pytest.approx(wanted, abs=TOLERANCE[rig.name])


def test_prefixes_are_an_adapters_own(rig: Rig) -> None:
    prompt = tuple(range(50, 100))

    def cached(adapter: str) -> int | None:
        rig.engine.add(SequenceRequest("s", prompt, max_tokens=1, adapter=adapter))
        updates = rig.engine.step()
        while rig.engine.has_work:
            updates += rig.engine.step()
        return updates[0].cached_tokens

    assert [cached(each) for each in (*rig.fingerprints, "")] == [0, 0, 0]
    assert [cached(each) for each in (*rig.fingerprints, "")] == [48, 48, 48]


def test_one_that_is_dropped_while_it_is_used(rig: Rig) -> None:
    """It ends its sequences, takes no others, and leaves its place behind them."""
    engine, second = rig.engine, rig.fingerprints[1]
    alone = run(engine, ask("a", second))["a"]
    with pytest.raises(ValueError, match=r"there is room for 2 adapters \(max_adapters\)$"):
        engine.add_adapter(str(rig.folder / "v"))
    engine.add(ask("a", second))
    tokens = [token for update in engine.step() for token in update.tokens]
    assert engine.drop_adapter(second)
    assert not engine.drop_adapter(second)
    with pytest.raises(FieldError, match=f"adapter: '{second}' is not loaded here"):
        engine.add(ask("b", second))
    with pytest.raises(ValueError, match="1 of them in use until their sequences end"):
        engine.add_adapter(str(rig.folder / "v"))
    while engine.has_work:
        tokens += [token for update in engine.step() for token in update.tokens]
    assert_alike(tokens, alone, 1e-4)
    other = engine.add_adapter(str(rig.folder / "v"))
    assert other.rank == 4
    assert run(engine, ask("c", other.fingerprint))["c"] != alone  # nothing of the one before is left in its place
    assert engine.drop_adapter(other.fingerprint)
    assert engine.add_adapter(str(rig.folder / "1")).fingerprint == second
    assert_alike(run(engine, ask("a", second))["a"], alone, 1e-4)


def test_the_same_again_takes_no_place(rig: Rig) -> None:
    assert rig.engine.add_adapter(str(rig.folder / "0")).fingerprint == rig.fingerprints[0]


def test_models_that_take_none(rig: Rig) -> None:
    with pytest.raises(ValueError, match="this model takes no adapters: deploy it with max_adapters over 0"):
        rig.merged[0].add_adapter(str(rig.folder / "0"))
