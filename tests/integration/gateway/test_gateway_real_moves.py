"""What clients may ask of an answer goes on behind a worker whose connection is lost midway, with the real engine.

Two workers serve one tiny model, one with drafts of n-grams, one with a draft model; relays cut them off. On the CPU
library an answer that moved is the undisturbed one, to the bit.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.gateway.test_gateway_answer_moves import blocks
from tests.support.peft_folders import low_rank_tensors, write_adapter
from tests.support.real_fleet import RealFleet, real_fleet
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.client import Completion, PolyfleetError

SHAPE = TinyShape(vocabulary=len(byte_level_metadata()["tokenizer.ggml.tokens"]), context=1024)
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}<|start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
)
USER: Any = [{"role": "user", "content": "hello hello hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 60, "minLength": 50}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
LETTERS = {"type": "string", "minLength": 40, "maxLength": 60}
SCHEMA = {
    "type": "object",
    "properties": {"a": LETTERS, "b": LETTERS},
    "required": ["a", "b"],
    "additionalProperties": False,
}
LONG: dict[str, Any] = {"max_tokens": 160, "ignore_eos": True}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"messages": USER, "temperature": 0, **LONG},
    "sampled": {"messages": USER, "seed": 5, "top_p": 0.9, "presence_penalty": 1.0, "repetition_penalty": 1.2, **LONG},
    "more choices than a batch": {"messages": USER, "seed": 7, "n": 6, **LONG},
    "logprobs": {"messages": USER, "temperature": 0, "logprobs": 2, **LONG},
    "prompt logprobs": {"prompt": "hello hello", "seed": 1, "logprobs": 0, "prompt_logprobs": 1, **LONG},
    "adapter": {"messages": USER, "model": "small", "temperature": 0, "logprobs": 0, **LONG},
    "structure": {"messages": USER, "seed": 2, "json_schema": SCHEMA, "logprobs": 0},
    "adapter and structure": {"messages": USER, "model": "small", "seed": 2, "json_schema": SCHEMA},
    "tools": {"messages": USER, "seed": 3, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    "choices of a structure": {"messages": USER, "seed": 6, "n": 3, "json_schema": SCHEMA, "logprobs": 1},
    "echo": {"prompt": "hello hello", "seed": 8, "echo": True, "logprobs": 0, "prompt_logprobs": 0, **LONG},
    "bias and bounds": {
        **{"messages": USER, "seed": 9, "max_tokens": 160, "min_tokens": 120, "stop_token_ids": [70, 71]},
        "logit_bias": {72: 3.0, 73: -100.0},
    },
    "expression": {"messages": USER, "seed": 10, "regex": "([a-z]{9} ){12}", "n": 2},
    "thoughts": {"messages": USER, "seed": 4, "template_arguments": {"enable_thinking": True}, **LONG},
}


HTTP: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": USER, "temperature": 0, "max_output_tokens": 160},
    "/v1/messages": {"messages": USER, "temperature": 0, "max_tokens": 160},
}


@asynccontextmanager
async def stack(folder: Path) -> AsyncIterator[RealFleet]:
    """Two workers with an adapter, whose drafts are made in two ways."""
    model = folder / "tiny.gguf"
    extra = byte_level_metadata() | {"tokenizer.chat_template": TEMPLATE}
    tensors = write_gguf(model, SHAPE, "Q8_0", extra=extra)
    adapter = write_adapter(folder / "small", low_rank_tensors(tensors, rank=4, size=0.3))
    given = ["--adapter", f"small={adapter}", "--speculation"]
    async with real_fleet(folder, model, [*given, "ngram"], [*given, "draft", "--draft-model", str(model)]) as fleet:
        yield fleet


def said(completion: Completion) -> list[dict[str, Any]]:
    """All of each choice but the names of its calls, which are drawn."""
    return [
        {
            "text": choice.text,
            "reasoning": choice.reasoning,
            "ids": choice.token_ids,
            "logprobs": choice.logprobs,
            "prompt": choice.prompt_logprobs,
            "calls": [(call.name, json.loads(call.arguments)) for call in choice.tool_calls],
            "reason": choice.finish_reason,
        }
        for choice in completion.choices
    ]


async def test_each_kind_of_answer_is_the_undisturbed_one(tmp_path: Path) -> None:
    async with stack(tmp_path) as fleet:
        greedy = await both(fleet, CASES["greedy"])
        late = re.search("[ -~]{3}", greedy.text[len(greedy.text) // 2 :])
        assert late is not None
        stopped = await both(fleet, CASES["greedy"] | {"stop": [late[0]]})
        assert stopped.text == greedy.text[: greedy.text.index(late[0])]
        for name, options in CASES.items():
            assert await both(fleet, options), name
        for path, body in HTTP.items():
            assert await streamed(fleet, path, body), path
        for worker in fleet.workers:
            address = (await worker.status()).info.metrics_address
            text = (await fleet.http.get(f"http://{address}/metrics")).text
            figures = dict(re.findall(r"^(\w+?)(?:{.*?})? ([0-9.e+]+)$", text, re.MULTILINE))
            assert float(figures["polyfleet_adapters"]) == 1
            assert float(figures["polyfleet_engine_accepted_drafts_total"]) > 0


async def test_an_answer_that_loses_worker_after_worker_ends_as_aborted(tmp_path: Path) -> None:
    async with stack(tmp_path) as fleet:
        asked: dict[str, Any] = {"model": "fake", **CASES["greedy"]}
        alone = await fleet.client.generate(**asked)
        ids = list[int]()

        async def read() -> None:
            async with fleet.client.stream(**asked) as stream:
                async for delta in stream:
                    ids.extend(delta.token_ids)
                    fleet.arm(1)

        with pytest.raises(PolyfleetError, match=r"lost its worker 4 times, and may move 3 times") as ended:
            await read()
        assert ended.value.status == "ABORTED"
        assert tuple(ids) == alone.token_ids[: len(ids)]
        assert 4 <= len(ids) < len(alone.token_ids)


async def both(fleet: RealFleet, options: dict[str, Any]) -> Completion:
    """The answer, which is the same when the connection of each worker is lost midway."""
    asked = {"model": "fake", **options}
    alone = await fleet.client.generate(**asked)
    async with fleet.cut_midway():
        moved = await fleet.client.generate(**asked)
    assert said(moved) == said(alone)
    return alone


async def streamed(fleet: RealFleet, path: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    """The blocks of an answer that is streamed over HTTP, which are the same when the connections are lost midway."""

    async def read() -> list[tuple[str, str]]:
        asked = body | {"model": "fake", "stream": True}
        lines = (await fleet.http.post(path, json=asked)).text.splitlines()
        return blocks(path, [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")])

    alone = await read()
    async with fleet.cut_midway():
        assert await read() == alone
    return alone
