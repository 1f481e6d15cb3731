"""Our engine as a contender."""

from collections.abc import Sequence

from bench.contenders.workload import MAX_SEQUENCES, MAX_TOKENS, Clock, Setting, Timing

from polyfleet.engine.engine import Engine
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest


class PolyfleetContender:
    """An Engine; the prefix cache is off, for nothing is to be found in it."""

    def __init__(self, model: str, setting: Setting) -> None:
        options = EngineOptions(
            device=str(setting["device"]),
            dtype=str(setting["dtype"]),
            executor=str(setting["executor"]),
            threads=int(setting["threads"]),
            kv_cache_tokens=2 * MAX_TOKENS,
            max_sequences=MAX_SEQUENCES,
            prefix_cache=False,
        )
        self._engine = Engine.load(model, options)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, now: Clock) -> Timing:
        """Add all, step until all have ended."""
        started = now()
        for number, prompt in enumerate(prompts):
            self._engine.add(SequenceRequest(str(number), tuple(prompt), max_tokens=new_tokens, ignore_eos=True))
        waiting = {str(number) for number in range(len(prompts))}
        all_started, decode_tokens = started, 0
        while self._engine.has_work:
            updates = self._engine.step()
            if broken := next((each.error for each in updates if each.error), ""):
                raise RuntimeError(broken)
            if waiting:
                waiting -= {each.sequence_id for each in updates}
                all_started = now()
            else:
                decode_tokens += sum(len(each.tokens) for each in updates)
        return Timing(all_started - started, now() - all_started, decode_tokens)
