"""How fast a backend computes what a decoder computes: matmul, norm, gated MLP, attention. One process a backend.

The child activates the device, so the parent never does. `python -m polyfleet.tuning.benchmark BACKEND JSON` is it.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from polyfleet.backends.protocol import BackendUnavailable, is_experimental
from polyfleet.backends.registry import BackendRegistry

BUSY_UTILIZATION = 0.5
FULL_MEMORY = 0.95
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """What to run: every combination of sizes, `iterations` timed runs each, until `duration_seconds` are over."""

    duration_seconds: float = 10.0
    iterations: int = 20
    batch_sizes: tuple[int, ...] = (1, 8)
    seq_lengths: tuple[int, ...] = (128, 512)
    hidden_sizes: tuple[int, ...] = (768,)
    dtype: str = "auto"


def run(options: BenchmarkOptions, backends: list[str] | None = None) -> dict[str, object]:
    """`{"options": …, "backends": {name: {"rows": […]} | {"error": sentence}}}`; an error of one stops no other."""
    names = backends or [name for name in BackendRegistry.list_available() if not is_experimental(name)]
    return {"options": asdict(options), "backends": {name: _run_child(name, options) for name in names}}


def _run_child(name: str, options: BenchmarkOptions) -> dict[str, Any]:
    try:
        backend = BackendRegistry.get(name)
    except BackendUnavailable as error:
        return {"error": str(error)}
    executors = [each for device in backend.devices() for each in backend.capabilities(device).executors]
    if executors and "eager" not in executors:
        return {"error": f"{name} is no device of torch, whose operations are timed here: nothing to measure"}
    readings = backend.telemetry()
    for each in readings:
        if (each.memory_used_bytes or 0) > FULL_MEMORY * (each.memory_total_bytes or float("inf")):
            return {"error": f"device {each.index} of {name} is full: free some of its memory first"}
    warnings = [
        f"device {each.index} is busy: {each.utilization_ratio:.0%} used by others, so figures will be low"
        for each in readings
        if (each.utilization_ratio or 0) > BUSY_UTILIZATION
    ]
    command = [sys.executable, "-m", "polyfleet.tuning.benchmark", name, json.dumps(asdict(options))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=START_SECONDS + 2 * options.duration_seconds
        )
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"{name} did not finish in time"}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": f"{name} broke off: {last}"}
    return {**answer, "warnings": warnings}


def measure(backend_name: str, options: BenchmarkOptions) -> dict[str, Any]:
    """In the child: time each operation; rows have milliseconds (mean, median, p95, deviation) and GFLOP/s."""
    import torch

    backend = BackendRegistry.get(backend_name)
    device = backend.activate()
    dtype_name = options.dtype
    if dtype_name == "auto":
        dtype_name = backend.capabilities(backend.devices()[0]).preferred_dtype
    dtype = getattr(torch, dtype_name)
    deadline = time.perf_counter() + options.duration_seconds
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for name, flops, work in _operations(options, device, dtype):
            if rows and time.perf_counter() > deadline:
                break
            seconds = _time(work, backend.synchronize, options.iterations, deadline)
            rows.append({"operation": name, **_statistics(seconds), "gflops": flops / statistics.median(seconds) / 1e9})
    return {"device": device, "dtype": dtype_name, "rows": rows}


def _operations(options: BenchmarkOptions, device: str, dtype: Any) -> Iterator[tuple[str, float, Callable[[], Any]]]:
    import torch
    from torch.nn import functional as F

    for hidden in options.hidden_sizes:
        weight = torch.randn(hidden, hidden, device=device, dtype=dtype)
        gate_up = torch.randn(8 * hidden, hidden, device=device, dtype=dtype)
        down = torch.randn(hidden, 4 * hidden, device=device, dtype=dtype)
        for batch in options.batch_sizes:
            for length in options.seq_lengths:
                size = f"{batch}x{length}x{hidden}"
                x = torch.randn(batch * length, hidden, device=device, dtype=dtype)
                rows = batch * length
                heads = max(1, hidden // 64)
                q = torch.randn(batch, heads, length, 64, device=device, dtype=dtype)

                def matmul(x: Any = x, weight: Any = weight) -> Any:
                    return F.linear(x, weight)

                def norm(x: Any = x, hidden: int = hidden) -> Any:
                    return F.rms_norm(x, (hidden,))

                def attend(q: Any = q) -> Any:
                    return F.scaled_dot_product_attention(q, q, q)

                def mlp(x: Any = x, gate_up: Any = gate_up, down: Any = down) -> Any:
                    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
                    return F.linear(F.silu(gate) * up, down)

                yield f"matmul {size}", 2.0 * rows * hidden**2, matmul
                yield f"rms_norm {size}", 4.0 * rows * hidden, norm
                yield f"gated_mlp {size}", 24.0 * rows * hidden**2, mlp
                attention = 4.0 * batch * heads * length**2 * 64
                yield f"attention {size}", attention, attend


def _time(work: Callable[[], Any], synchronize: Callable[[], None], iterations: int, deadline: float) -> list[float]:
    for _ in range(min(3, iterations)):
        work()
    synchronize()
    seconds: list[float] = []
    while len(seconds) < iterations and (not seconds or time.perf_counter() < deadline):
        started = time.perf_counter()
        work()
        synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds


def _statistics(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "runs": len(ordered),
        "mean_ms": statistics.fmean(ordered) * 1e3,
        "median_ms": statistics.median(ordered) * 1e3,
        "p95_ms": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] * 1e3,
        "deviation_ms": statistics.pstdev(ordered) * 1e3,
    }


def main(name: str, options: str) -> None:
    """Print the measurements, or `{"error": sentence}`, as one line of JSON."""
    loaded = json.loads(options)
    sizes: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in loaded.items()}
    try:
        print(json.dumps(measure(name, BenchmarkOptions(**sizes))))
    except (RuntimeError, AttributeError, ValueError) as error:  # out of memory, no such dtype
        print(json.dumps({"error": f"{name} can't run this: {str(error).splitlines()[0]}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
