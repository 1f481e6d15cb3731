"""OpenVINO GenAI as a contender: its continuous-batching pipeline, which reads a GGUF file as it is."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from bench.contenders.workload import MAX_SEQUENCES, Clock, Setting, Timing

CACHE_GIGABYTES = 1


class OpenVinoContender:
    """A ContinuousBatchingPipeline on the CPU; its prefix cache is off, for nothing is to be found in it."""

    def __init__(self, model: str, setting: Setting) -> None:
        genai: Any = import_module("openvino_genai")
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIGABYTES
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = MAX_SEQUENCES
        scheduler.max_num_batched_tokens = int(setting["batched_tokens"])
        properties: dict[str, str | int] = {"INFERENCE_NUM_THREADS": int(setting["threads"])}
        if setting["precision"] != "default":
            properties["INFERENCE_PRECISION_HINT"] = setting["precision"]
        self._genai = genai
        self._tensor: Any = import_module("openvino").Tensor
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, now: Clock) -> Timing:
        """Add all, step until none is left."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        started = now()
        handles = [
            self._pipeline.add_request(number, self._tensor(np.array([prompt], dtype=np.int64)), config)
            for number, prompt in enumerate(prompts)
        ]
        waiting, num_before, all_started = list(handles), 0, started
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            if waiting:
                waiting = [handle for handle in waiting if not handle.can_read()]
                all_started = now()
                num_before = 0 if waiting else sum(map(_read, handles))
        ended = now()
        total = num_before + sum(map(_read, handles))
        if total != len(prompts) * new_tokens:
            raise RuntimeError(f"{total} tokens came instead of {len(prompts) * new_tokens}")
        return Timing(all_started - started, ended - all_started, total - num_before)


def _read(handle: Any) -> int:
    """Take what a request has brought so far; how many tokens that is."""
    count = 0
    while handle.can_read():
        count += sum(len(output.generated_ids) for output in handle.read().values())
    return count
