"""llama.cpp as a contender, through the C API that llama-cpp-python binds, so that sequences share a batch."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from bench.contenders.workload import MAX_SEQUENCES, MAX_TOKENS, Clock, Setting, Timing

Row = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted


class LlamaCppContender:
    """A llama_context with room for every workload."""

    def __init__(self, model: str, setting: Setting) -> None:
        api: Any = import_module("llama_cpp")
        self._api = api
        api.llama_backend_init()
        loaded = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        if not loaded:
            raise RuntimeError("llama.cpp can't load the model")
        params = api.llama_context_default_params()
        params.n_ctx = 2 * MAX_TOKENS
        params.n_batch = MAX_TOKENS
        params.n_ubatch = int(setting["ubatch"])
        params.n_seq_max = MAX_SEQUENCES
        params.kv_unified = True
        params.flash_attn_type = int(setting["flash_attention"])
        params.n_threads = params.n_threads_batch = int(setting["threads"])
        self._context = api.llama_init_from_model(loaded, params)
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
        self._batch = api.llama_batch_init(MAX_TOKENS, 0, 1)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, now: Clock) -> Timing:
        """One batch with all prompts, then one batch a token."""
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        started = now()
        length = len(prompts[0])
        rows = [
            (token, position, number, position == length - 1)
            for number, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        tokens = self._decode(rows)
        first = now()
        for position in range(length, length + new_tokens - 1):
            tokens = self._decode([(token, position, number, True) for number, token in enumerate(tokens)])
        decode_tokens = len(prompts) * (new_tokens - 1)
        return Timing(first - started, now() - first, decode_tokens)

    def _decode(self, rows: list[Row]) -> list[int]:
        """Compute a batch; the likeliest next token of each row whose logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for number, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[number] = token
            batch.pos[number] = position
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = sequence
            batch.logits[number] = wanted
        if self._api.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        chosen = []
        for number, row in enumerate(rows):
            if row[3]:
                logits = self._api.llama_get_logits_ith(self._context, number)
                chosen.append(int(np.ctypeslib.as_array(logits, shape=(self._vocabulary,)).argmax()))
        return chosen
