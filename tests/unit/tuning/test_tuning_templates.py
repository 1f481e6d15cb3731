"""Every template: valid for the engine, cut to the device, and different from leaving all to the engine."""

from dataclasses import replace

import pytest

from polyfleet.backends.protocol import BackendType, DeviceInfo, KernelCapabilities
from polyfleet.engine.choosing.sizing import DTYPE_BYTES, Machine, computing_dtype, resolve
from polyfleet.engine.executor import Footprint
from polyfleet.models.config import ModelConfig
from polyfleet.tuning.choice import check_choice
from polyfleet.tuning.device_defaults import defaults_of
from polyfleet.tuning.optimizer import best_template
from polyfleet.tuning.templates import ACCELERATORS, GIB, TEMPLATES, configure
from polyfleet.wire.options import EngineOptions

CAPABILITIES = KernelCapabilities(frozenset({"float32", "float16", "bfloat16"}), "bfloat16")
CONFIG = ModelConfig("llama", "m", 32000, 2048, 16, 32, 8, 64, 8192, 1e-5, (1.0,) * 32, 4096, False)
CASES = [(name, accelerator) for name, each in TEMPLATES.items() for accelerator in (each.accelerators or ACCELERATORS)]


def footprint(dtype: str) -> Footprint:
    """Of a billion weights."""
    size = DTYPE_BYTES[dtype]
    return Footprint(10**9 * size, 2 * CONFIG.num_layers * CONFIG.num_kv_heads * CONFIG.head_dim * size)


def device(memory_gib: int, cores: int = 8) -> DeviceInfo:
    return DeviceInfo(0, "a device", "arch", memory_gib * GIB, cores=cores)


def test_there_are_enough() -> None:
    assert len(TEMPLATES) >= 18


@pytest.mark.parametrize(("name", "accelerator"), CASES)
def test_a_template_is_valid_and_has_an_effect(name: str, accelerator: str) -> None:
    backend = BackendType(accelerator)
    config = check_choice(configure(TEMPLATES[name], backend, device(48), CAPABILITIES))
    assert config.pop("backend") == accelerator
    options = EngineOptions(**config)
    torch_name = "cpu" if accelerator == "cpu" else f"{accelerator}:0"
    machine = Machine(torch_name, CAPABILITIES.dtypes, "bfloat16", 40 * GIB, 8)
    chosen, left_open = (
        resolve(each, CONFIG, footprint(computing_dtype(each, machine)), machine) for each in (options, EngineOptions())
    )
    assert chosen.max_sequences == config["max_sequences"]
    assert chosen.kv_cache_tokens == config["kv_cache_tokens"]
    assert replace(chosen, device="") != replace(left_open, device="")


def test_ascend_gets_blocks_of_128() -> None:
    capabilities = replace(CAPABILITIES, block_sizes=(128,))
    config = configure(TEMPLATES["inference"], BackendType.ASCEND, device(64), capabilities)
    assert config["block_size"] == 128
    assert config["kv_cache_tokens"] % 128 == 0


def test_a_template_takes_no_executor_that_the_device_lacks() -> None:
    shaders = replace(CAPABILITIES, executors=("vulkan",))
    assert configure(TEMPLATES["development"], BackendType.VULKAN, device(0), shaders)["executor"] == "auto"
    assert configure(TEMPLATES["development"], BackendType.CUDA, device(80), CAPABILITIES)["executor"] == "eager"


def test_a_small_device_gets_less_than_it_was_wished() -> None:
    small = configure(TEMPLATES["throughput"], BackendType.CUDA, device(4), CAPABILITIES)
    large = configure(TEMPLATES["throughput"], BackendType.CUDA, device(80), CAPABILITIES)
    assert (small["max_sequences"], large["max_sequences"]) == (16, 256)
    assert small["kv_cache_tokens"] < large["kv_cache_tokens"]


def test_a_template_of_another_family_is_refused() -> None:
    with pytest.raises(ValueError, match="template edge-cuda is for cuda, not for cpu"):
        configure(TEMPLATES["edge-cuda"], BackendType.CPU, device(8), CAPABILITIES)


@pytest.mark.parametrize(
    ("backend", "memory", "cores", "name"),
    [
        (BackendType.CUDA, 80, 132, "datacentre-cuda"),
        (BackendType.CUDA, 24, 82, "datacentre-cuda"),
        (BackendType.ROCM, 16, 60, "workstation-rocm"),
        (BackendType.XPU, 2, 32, "edge-xpu"),
        (BackendType.MPS, 128, 40, "workstation-mps"),
        (BackendType.CPU, 24, 2, "inference"),
        (BackendType.CPU, 512, 64, "datacentre-cpu"),
        (BackendType.VULKAN, 0, 0, "memory-constrained"),
    ],
)
def test_the_rule_goes_by_memory_and_cores(backend: BackendType, memory: int, cores: int, name: str) -> None:
    assert best_template(backend, device(memory, cores)).name == name


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_templates_give_a_host_no_larger_steps_than_it_would_choose(cores: int) -> None:
    defaults = defaults_of(host=True, cores=cores)
    for each in TEMPLATES.values():
        if not each.accelerators or "cpu" in each.accelerators:
            config = configure(each, BackendType.CPU, device(256, cores), CAPABILITIES)
            assert config["max_sequences"] <= defaults.max_sequences
            assert config["step_tokens"] <= defaults.step_tokens
