"""transformers as a contender: its forward pass and KV cache in the tightest greedy loop that they allow."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch
from bench.contenders.workload import Clock, Setting, Timing


class TransformersContender:
    """A causal language model in eager torch; a GGUF file is dequantised by transformers itself."""

    def __init__(self, model: str, setting: Setting) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        transformers = import_module("transformers")
        if int(setting["threads"]):
            torch.set_num_threads(int(setting["threads"]))
        path = Path(model)
        where = {"gguf_file": path.name} if path.is_file() else {}
        self._device = str(setting["device"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent if path.is_file() else path),
            dtype=getattr(torch, str(setting["dtype"])),
            attn_implementation=str(setting["attention"]),
            **where,
        )
        self._model.to(self._device).eval()

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, now: Clock) -> Timing:
        """All prompts have one length: no padding."""
        started = now()
        out = self._model(torch.tensor(prompts, device=self._device), use_cache=True, logits_to_keep=1)
        tokens = out.logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens.cpu()  # waits for the device
        first = now()
        for _ in range(new_tokens - 1):
            out = self._model(tokens, past_key_values=out.past_key_values, use_cache=True)
            tokens = out.logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens.cpu()
        decode_tokens = len(prompts) * (new_tokens - 1)
        return Timing(first - started, now() - first, decode_tokens)
