"""A contender's own process: loads the model, then answers one line of JSON with another until its input ends.

Started by `bench.contenders.process`: `python -m bench.contenders.child KIND MODEL SETTING`.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

from bench.contenders.workload import CLOCKS, WORKLOADS, Contender

CLASSES = {
    "polyfleet": ("ours", "PolyfleetContender"),
    "transformers": ("huggingface", "TransformersContender"),
    "llama.cpp": ("llama_cpp", "LlamaCppContender"),
    "openvino": ("openvino", "OpenVinoContender"),
}


def main(kind: str, model: str, setting: str) -> None:
    """Serve `{"workload": name, "seed": number, "clock": name}` with `{"rate": …}` or `{"error": sentence}`."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not get among the answers
    module, name = CLASSES[kind]
    workloads = {each.name: each for each in WORKLOADS}
    try:
        loaded: Contender = getattr(import_module(f"bench.contenders.{module}"), name)(model, json.loads(setting))
    except Exception as error:
        answers.write(json.dumps({"error": _sentence(error)}) + "\n")
        return
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_answer(loaded, workloads, json.loads(line))) + "\n")


def _answer(loaded: Contender, workloads: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
    workload = workloads[order["workload"]]
    try:
        timing = loaded.generate(workload.prompts(order["seed"]), workload.new_tokens, CLOCKS[order["clock"]])
        return {"rate": workload.rate(timing)}
    except Exception as error:
        return {"error": _sentence(error)}


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    main(*sys.argv[1:])
