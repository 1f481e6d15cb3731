"""What clients may ask of an answer goes on behind a worker whose connection is lost midway, with the real engine.

Two workers serve one tiny model, one with drafts of n-grams, one with a draft model; relays cut them off. On the CPU
library an answer that moved is the undisturbed one, to the bit.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from bench.chaos.link import Link
from tests.support.gateway_rig import GatewayRig, until
from tests.support.peft_folders import low_rank_tensors, write_adapter
from tests.support.running_worker import REAL, RunningWorker
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.client import AsyncClient, Completion, PolyfleetError
from polyfleet.loading.load import load_model
from polyfleet.v1 import fleet_pb2

SHAPE = TinyShape(vocabulary=len(byte_level_metadata()["tokenizer.ggml.tokens"]), context=1024)
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}<|start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
)
OPTIONS = ("--threads", "1", "--kv-cache-tokens", "4096", "--max-sequences", "4", "--canary-interval", "0")
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
    "thoughts": {"messages": USER, "seed": 4, "template_arguments": {"enable_thinking": True}, **LONG},
}


@asynccontextmanager
async def stack(folder: Path) -> AsyncIterator[tuple[AsyncClient, list[Link], list[str]]]:
    """A gateway's client, the relays before its two workers, and where these tell their metrics."""
    model = folder / "tiny.gguf"
    extra = byte_level_metadata() | {"tokenizer.chat_template": TEMPLATE}
    tensors = write_gguf(model, SHAPE, "Q8_0", extra=extra)
    adapter = write_adapter(folder / "small", low_rank_tensors(tensors, rank=4, size=0.3))
    given = [*OPTIONS, "--adapter", f"small={adapter}", "--speculation"]
    drafts = (["ngram"], ["draft", "--draft-model", str(model)])
    relays, metrics = list[Link](), list[str]()
    async with AsyncExitStack() as entered:
        rig = await entered.enter_async_context(GatewayRig())
        assets = load_model(model).tokenizer
        assert assets is not None
        rig.fleet.add_assets(assets.document)
        for number, each in enumerate(drafts):
            home = folder / str(number)
            home.mkdir()
            running = RunningWorker(home, *given, *each, model=str(model), command=REAL)
            worker = await entered.enter_async_context(running)
            relay = await entered.enter_async_context(Link(worker.address))
            answer = await worker.status()
            info = fleet_pb2.WorkerInfo()
            info.CopyFrom(answer.info)
            info.address = relay.address
            rig.fleet.workers[info.worker_id] = fleet_pb2.FleetWorker(info=info, status=answer.status)
            relays.append(relay)
            metrics.append(info.metrics_address)
        rig.fleet.publish()
        sessions = rig.gateway.view.sessions
        await until(lambda: len(sessions) == 2 and all(session.connected for session in sessions.values()))
        client = await entered.enter_async_context(AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}"))
        yield client, relays, metrics


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
    async with stack(tmp_path) as (client, relays, metrics):
        greedy = await both(client, relays, CASES["greedy"])
        late = re.search("[ -~]{3}", greedy.text[len(greedy.text) // 2 :])
        assert late is not None
        stopped = await both(client, relays, CASES["greedy"] | {"stop": [late[0]]})
        assert stopped.text == greedy.text[: greedy.text.index(late[0])]
        for name, options in CASES.items():
            assert await both(client, relays, options), name
        async with httpx.AsyncClient(trust_env=False) as http:
            for address in metrics:
                text = (await http.get(f"http://{address}/metrics")).text
                figures = dict(re.findall(r"^(\w+?)(?:{.*?})? ([0-9.e+]+)$", text, re.MULTILINE))
                assert float(figures["polyfleet_adapters"]) == 1
                assert float(figures["polyfleet_engine_accepted_drafts_total"]) > 0


async def test_an_answer_that_loses_worker_after_worker_ends_as_aborted(tmp_path: Path) -> None:
    async with stack(tmp_path) as (client, relays, _):
        asked: dict[str, Any] = {"model": "fake", **CASES["greedy"]}
        alone = await client.generate(**asked)
        ids = list[int]()

        async def read() -> None:
            async with client.stream(**asked) as stream:
                async for delta in stream:
                    ids.extend(delta.token_ids)
                    for relay in relays:
                        relay.arm(1)

        with pytest.raises(PolyfleetError, match=r"lost its worker 4 times, and may move 3 times") as ended:
            await read()
        assert ended.value.status == "ABORTED"
        assert tuple(ids) == alone.token_ids[: len(ids)]
        assert 4 <= len(ids) < len(alone.token_ids)


async def both(client: AsyncClient, relays: list[Link], options: dict[str, Any]) -> Completion:
    """The answer, which is the same when the connection of each worker is lost midway."""
    asked = {"model": "fake", **options}
    alone = await client.generate(**asked)
    for relay in relays:
        relay.arm(300)
    cuts = sum(relay.cuts for relay in relays)
    moved = await client.generate(**asked)
    for relay in relays:
        relay.arm(0)
    assert said(moved) == said(alone)
    assert sum(relay.cuts for relay in relays) > cuts
    return alone
