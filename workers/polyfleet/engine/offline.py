"""The engine alone, in this process, for one prompt: no gateway, no worker, no server."""

from dataclasses import dataclass

from polyfleet.engine.engine import Engine, Progress
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """What was generated; a stop or end token is not among the ids."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason


def generate_offline(
    path: str,
    prompt_ids: tuple[int, ...],
    *,
    max_tokens: int = 16,
    dtype: str = "auto",
    device: str = "auto",
    executor: str = "auto",
    ignore_eos: bool = False,
    temperature: float = 0.0,
    seed: int = 0,
    threads: int = 0,
    progress: Progress | None = None,
) -> OfflineResult:
    """Continue `prompt_ids` with the model at `path`, greedily unless a temperature is given.

        from polyfleet.engine import generate_offline

        result = generate_offline("model.gguf", (1, 2, 3), max_tokens=50, dtype="float32")
        print(result.token_ids, result.finish_reason.value)

    Raises what `Engine.load` raises, FieldError for a bad argument, RuntimeError when computing fails. To compute
    more than one prompt, or to see tokens as they come, drive an `Engine`.
    """
    params = SamplingParams(temperature=temperature, seed=seed)
    request = SequenceRequest("offline", tuple(prompt_ids), params, max_tokens=max_tokens, ignore_eos=ignore_eos)
    options = EngineOptions(device=device, dtype=dtype, executor=executor, threads=threads, max_sequences=1)
    engine = Engine.load(path, options, progress)
    engine.add(request)
    token_ids: list[int] = []
    while engine.has_work:
        for update in engine.step():
            token_ids += [token.token_id for token in update.tokens]
            if update.error:
                raise RuntimeError(update.error)
            if update.finish_reason is not None:
                return OfflineResult(tuple(token_ids), update.finish_reason)
    raise RuntimeError("the engine ended without a result")  # pragma: no cover - a sequence always ends
