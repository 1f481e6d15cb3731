"""Sizing: what is chosen when nothing is said, and what is refused."""

from dataclasses import replace

import pytest
import torch
from tests.support.small_config import SMALL

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.choosing.executors import KNOWN, Workload, find
from polyfleet.engine.choosing.sizing import MOST_BLOCKS, Machine, capacity_of, resolve
from polyfleet.engine.executor import Footprint
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.model import LoadedModel
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import record, weight_shapes
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

GIB = 2**30
CONFIG = replace(SMALL, num_layers=4, context_length=4096)
HOST = Machine("cpu", frozenset({"float32", "bfloat16", "float64"}), "float32", 8 * GIB, cores=4)
CARD = Machine("cuda:0", frozenset({"float32", "float16", "bfloat16"}), "bfloat16", 64 * GIB, cores=16)
EACH = 2 * 4 * 2 * 16 * 4  # keys and values, layers, KV heads, head size, bytes of float32
CARD_EACH = 2**16  # of a larger model, in bfloat16


def weights(count: int) -> Footprint:
    """What an executor takes on a host that keeps so many weights, and the KV cache, in float32."""
    return Footprint(count * 4, EACH)


def halves(count: int) -> Footprint:
    """The same in bfloat16, on a card."""
    return Footprint(count * 2, CARD_EACH)


def test_nothing_is_left_open() -> None:
    for machine, num_contexts in ((HOST, 4), (replace(CARD, unified_memory=True), 16)):
        resolved = resolve(EngineOptions(), CONFIG, weights(1000), machine)
        assert resolved.device == machine.device
        assert resolved.dtype == machine.preferred_dtype
        assert resolved.context_length == 4096
        assert resolved.kv_cache_tokens == num_contexts * 4096
        assert resolved.threads == machine.cores
        assert 0 < resolved.max_sequences < resolved.step_tokens
        assert resolve(resolved, CONFIG, weights(1000), machine) == resolved


def test_few_sequences_need_few_contexts() -> None:
    assert resolve(EngineOptions(max_sequences=2), CONFIG, weights(1000), HOST).kv_cache_tokens == 2 * 4096


def test_a_pool_takes_a_quarter_of_a_hosts_memory_at_most() -> None:
    machine = replace(HOST, free_bytes=4000 * EACH + 4000)
    resolved = resolve(EngineOptions(), CONFIG, weights(1000), machine)  # 1,000 weights of 4 bytes
    assert resolved.kv_cache_tokens == 992  # 1,000 in whole blocks of 16
    assert resolved.context_length == 992
    assert resolved.max_sequences == 992 // 256


def test_what_was_said_is_kept() -> None:
    said = EngineOptions(
        dtype="bfloat16", context_length=1000, kv_cache_tokens=2001, max_sequences=5, step_tokens=64, threads=2
    )
    resolved = resolve(said, CONFIG, weights(1000), HOST)
    assert resolved == replace(said, device="cpu", kv_cache_tokens=2016, block_size=16, step_seconds=0.25)


def test_a_pool_smaller_than_the_models_context_shortens_it() -> None:
    assert resolve(EngineOptions(kv_cache_tokens=512), CONFIG, weights(1000), HOST).context_length == 512


def test_a_workspace_that_was_measured_is_left_free() -> None:
    card = replace(CARD, free_bytes=80 * GIB)
    footprint = replace(halves(8 * GIB), workspace=20 * GIB)
    resolved = resolve(EngineOptions(), CONFIG, footprint, card)
    used = 16 * GIB + resolved.kv_cache_tokens * CARD_EACH
    assert 59.9 * GIB < used <= 60 * GIB


def test_the_time_of_a_step_is_what_was_said_or_fits_the_device() -> None:
    assert resolve(EngineOptions(step_seconds=0.7), CONFIG, weights(1000), HOST).step_seconds == 0.7
    assert resolve(EngineOptions(), CONFIG, weights(1000), HOST).step_seconds == 0.25


def test_many_sequences_get_a_step_that_holds_them() -> None:
    resolved = resolve(EngineOptions(max_sequences=400), CONFIG, weights(1000), HOST)
    assert (resolved.max_sequences, resolved.step_tokens) == (400, 800)


@pytest.mark.parametrize("wanted", [33, 2**31 - 1])
def test_no_more_sequences_than_blocks_are_taken(wanted: int, caplog: pytest.LogCaptureFixture) -> None:
    said = EngineOptions(max_sequences=wanted, kv_cache_tokens=512)
    resolved = resolve(said, CONFIG, weights(1000), HOST)
    assert (resolved.max_sequences, resolved.step_tokens) == (32, 512)
    assert f"{wanted} sequences at once were asked for, the KV pool has 32 blocks: so many run" in caplog.text


def test_few_tokens_a_step_allow_few_sequences() -> None:
    assert resolve(EngineOptions(step_tokens=8), CONFIG, weights(1000), HOST).max_sequences == 4


def test_more_threads_than_cores_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve(EngineOptions(threads=9), CONFIG, weights(1000), HOST).threads == 4
    assert "9 threads were asked for, 4 cores may be used: taking 4" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EngineOptions(dtype="float16"), "dtype: must be auto, bfloat16 or float32 on cpu, not float16"),
        (EngineOptions(context_length=5000), "context_length: must be at most the model's 4096, not 5000"),
        (
            EngineOptions(context_length=600, kv_cache_tokens=512),
            "context_length: must fit the KV pool of 512 tokens, not 600",
        ),
        (EngineOptions(kv_cache_tokens=2**24), "kv_cache_tokens: 16777216 tokens take 16.0 GiB, 8.0 GiB are free"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(options: EngineOptions, message: str) -> None:
    with pytest.raises(FieldError) as raised:
        resolve(options, CONFIG, weights(1000), HOST)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(("cores", "wanted"), [(1, (32, 256)), (2, (32, 256)), (8, (128, 1024)), (64, (256, 2048))])
def test_a_host_computes_more_at_once_with_more_cores(cores: int, wanted: tuple[int, int]) -> None:
    config = replace(CONFIG, context_length=2**16)
    options = resolve(EngineOptions(), config, Footprint(0, 1), replace(HOST, cores=cores))
    assert (options.max_sequences, options.step_tokens) == wanted


def test_states_take_their_part_and_leave_no_prefix_to_be_read_again() -> None:
    """Of what is free a quarter at most where nobody says for how many sequences."""
    stateful = replace(weights(1000), state_per_sequence=GIB // 4)
    resolved = resolve(EngineOptions(), CONFIG, stateful, HOST)
    assert resolved.max_sequences == 7, "2 GiB less 4,000 bytes"
    assert not resolved.prefix_cache
    assert resolve(resolved, CONFIG, stateful, HOST) == resolved
    most = resolve(EngineOptions(max_sequences=31), CONFIG, stateful, HOST)
    assert most.kv_cache_tokens * EACH <= GIB // 4, "what the states leave"
    with pytest.raises(FieldError, match=r"max_sequences: the states of 33 take 8.2 GiB, 8.0 GiB are free"):
        resolve(EngineOptions(max_sequences=33), CONFIG, stateful, HOST)


def test_a_sequence_holds_its_window_where_all_layers_have_one() -> None:
    """So longer contexts fit a pool, and a host's is smaller; one layer that sees all changes that."""
    local = replace(CONFIG, windows=(256, 128, 256, 256), context_length=2**16)
    mixed = replace(local, windows=(256, 0, 256, 256))
    assert (local.horizon, mixed.horizon) == (256, 0)
    options = EngineOptions(step_tokens=128, kv_cache_tokens=1024, max_sequences=2)
    assert resolve(options, local, weights(1000), HOST).context_length == 2**16
    assert resolve(options, mixed, weights(1000), HOST).context_length == 1024
    options = EngineOptions(step_tokens=128, max_sequences=2)
    assert resolve(options, local, weights(1000), HOST).kv_cache_tokens == 2 * (256 + 2 * 128 + 3 * 16)
    assert resolve(options, mixed, weights(1000), HOST).kv_cache_tokens == 2 * 2**16
    resolved = resolve(EngineOptions(), local, weights(1000), HOST)
    assert resolve(resolved, local, weights(1000), HOST) == resolved


def test_no_memory_for_a_pool_is_said() -> None:
    with pytest.raises(FieldError, match="no memory is left on cpu for a KV pool beside the model"):
        resolve(EngineOptions(), CONFIG, weights(2**31), HOST)


@pytest.mark.parametrize("size", [20, 40, 80, 192])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_a_card_is_used_to_85_to_90_percent(size: int, share: float) -> None:
    """Whatever part of it the weights take: the rest is for activations."""
    card = replace(CARD, free_bytes=size * GIB)
    held = int(share * card.free_bytes)
    resolved = resolve(EngineOptions(), CONFIG, halves(held // 2), card)
    used = held + resolved.kv_cache_tokens * CARD_EACH
    assert 0.85 <= used / card.free_bytes <= 0.90


def test_tokens_that_take_next_to_nothing_do_not_fill_a_card() -> None:
    assert capacity_of(resolve(EngineOptions(), CONFIG, Footprint(0, 1), CARD)).num_blocks == MOST_BLOCKS


def test_a_small_card_keeps_a_gibibyte_for_activations() -> None:
    card = replace(CARD, free_bytes=4 * GIB)
    resolved = resolve(EngineOptions(), CONFIG, halves(GIB // 2), card)
    used = GIB + resolved.kv_cache_tokens * CARD_EACH
    assert 2.9 * GIB < used <= 3 * GIB


def test_blocks_are_of_a_size_that_the_device_accepts() -> None:
    ascend = replace(CARD, block_sizes=(128,))
    resolved = resolve(EngineOptions(), CONFIG, weights(1000), ascend)
    assert resolved.block_size == 128
    assert resolved.kv_cache_tokens % 128 == 0
    assert resolve(EngineOptions(), CONFIG, weights(1000), CARD).block_size == 16
    assert resolve(EngineOptions(block_size=48), CONFIG, weights(1000), CARD).block_size == 48
    with pytest.raises(FieldError, match="block_size: must be 16 or 64 on cuda:0, not 48"):
        resolve(EngineOptions(block_size=48), CONFIG, weights(1000), replace(CARD, block_sizes=(16, 64)))


def test_a_static_cache_runs_as_many_sequences_as_it_has_blocks() -> None:
    """One block holds a whole context."""
    options = EngineOptions(block_size=4096, kv_cache_tokens=6 * 4096)
    resolved = resolve(options, CONFIG, weights(1000), HOST)
    assert (resolved.context_length, resolved.max_sequences) == (4096, 6)


def test_eight_billion_4_bit_weights_leave_a_host_with_30_gib_room_to_serve() -> None:
    """From the file's headers alone: no data is read."""
    model = llama_8b(WeightFormat.Q4_K)
    graph = record(model.config, model.weights)
    workload = Workload(graph, model.weights, EngineOptions(), "cpu", "float32", KernelCapabilities(frozenset(), ""))
    packed = find("persistent", KNOWN["persistent"]).footprint(workload)
    assert packed.weights < 5.5 * GIB
    host = replace(HOST, free_bytes=30 * GIB)
    resolved = resolve(EngineOptions(), model.config, packed, host)
    assert resolved.context_length >= 8192
    assert resolved.max_sequences >= 8
    assert find("eager", KNOWN["eager"]).footprint(workload).weights > 29 * GIB


def llama_8b(form: WeightFormat) -> LoadedModel:
    """Llama-3-8B's shape, without its weights' data; vectors are float32."""
    rope = (1.0,) * 64
    config = ModelConfig("llama", "8b", 128256, 4096, 32, 32, 8, 128, 14336, 1e-5, rope, 131072, False)
    held = {
        name: Weight(name, form if rows > 1 else WeightFormat.F32, rows, columns, torch.empty(0))
        for name, (rows, columns) in weight_shapes(config).items()
    }
    return LoadedModel("8b.gguf", config, held, None)


def test_layers_with_a_window_have_a_pool_of_their_own_where_others_see_all() -> None:
    """A Gemma 3's shape: five of six layers see 1,024 tokens. The same memory holds far more long sequences."""
    config = replace(CONFIG, windows=(1024, 1024, 1024, 1024, 1024, 0) * 4, context_length=2**17)
    assert (config.horizon, config.local_window) == (0, 1024)
    each = 24 * 1024
    one, two = Footprint(0, each), Footprint(0, each, local_per_token=each * 5 // 6)
    for options in (EngineOptions(), EngineOptions(max_sequences=32, step_tokens=512)):
        before, after = (resolve(options, config, footprint, CARD) for footprint in (one, two))
        assert after.kv_cache_tokens > 4.5 * before.kv_cache_tokens
        assert after.max_sequences == before.max_sequences, "no fewer short ones"
        capacity = capacity_of(after, config.local_window)
        assert capacity.local_blocks >= after.max_sequences * 1024 // 16
        taken = (capacity.num_blocks + 5 * capacity.local_blocks) * 16 * each // 6
        assert 0.99 * before.kv_cache_tokens * each < taken <= before.kv_cache_tokens * each + 16 * each
        assert resolve(after, config, two, CARD) == after
    assert capacity_of(after).local_blocks == 0, "of executors that know one pool"
    tight = EngineOptions(kv_cache_tokens=4096, max_sequences=16)
    assert capacity_of(resolve(tight, config, two, CARD), config.local_window).local_blocks == 4096 // 16
