"""The console's chat through a gateway: what comes, and that what is left is cancelled."""

import json
from pathlib import Path
from typing import Any

import httpx2
from tests.support.console_rig import ConsoleRig, csrf_of
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, GatewayRig, text_worker, until
from tests.unit.process.test_process_fleet_keys import write

from polyfleet.client import AsyncClient
from polyfleet.console.pages.chat import told

CHAT = [{"role": "user", "content": "Hello"}]


def address(gateway: GatewayRig) -> str:
    return f"127.0.0.1:{gateway.gateway.grpc.port}"


async def asked(browser: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    headers = {"x-csrf-token": await csrf_of(browser)}
    return await browser.post("/chat/answer", content=json.dumps({"messages": CHAT, **body}), headers=headers)


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]


async def test_an_answer_is_what_the_gateway_gives() -> None:
    async with GatewayRig() as gateway, ConsoleRig(fleet="127.0.0.1:1", gateway=address(gateway)) as rig:
        await gateway.add(text_worker("w-1"))
        browser = rig.browser()
        assert (await browser.get("/chat")).status_code == 200
        assert (await browser.get("/chat/models")).json() == {"models": [MODEL]}
        found = events(await asked(browser, max_tokens=12, temperature=0, seed=1))
        async with AsyncClient(address(gateway)) as client:
            right = await client.chat(CHAT, max_tokens=12, temperature=0.0, seed=1)
        assert "".join(each.get("text", "") for each in found) == right.text
        assert found[0]["worker"] == "w-1"
        done = found[-1]["done"]
        assert right.usage is not None
        assert done["completion_tokens"] == right.usage.completion_tokens
        assert 0 <= done["first_seconds"] <= done["seconds"]


async def test_models_that_no_text_can_be_sent_to_are_not_offered() -> None:
    async with GatewayRig() as gateway, ConsoleRig(fleet="127.0.0.1:1", gateway=address(gateway)) as rig:
        await gateway.add(text_worker("w-1"), FakeWorker("w-2", "ids"))
        async with AsyncClient(address(gateway)) as client:
            assert {each.name: each.ids_only for each in await client.models()} == {MODEL: False, "ids": True}
        assert (await rig.browser().get("/chat/models")).json() == {"models": [MODEL]}


async def test_what_the_gateway_refuses_is_told() -> None:
    async with GatewayRig() as gateway, ConsoleRig(fleet="127.0.0.1:1", gateway=address(gateway)) as rig:
        await gateway.add(text_worker("w-1"))
        browser = rig.browser()
        assert "temperature" in events(await asked(browser, temperature=99))[-1]["problem"]
        assert "other" in events(await asked(browser, model="other"))[-1]["problem"]
        long = [{"role": "user", "content": "x" * 100_000}]
        assert "context" in events(await asked(browser, messages=long))[-1]["problem"]
        bodies: list[dict[str, Any]] = [{"messages": []}, {"nonsense": 1}, {"messages": [{"role": "robot"}]}]
        for body in bodies:
            answer = await asked(browser, **body)
            assert (answer.status_code, "problem" in answer.json()) == (400, True)


async def test_calls_carry_the_visitors_own_key(tmp_path: Path) -> None:
    keys = str(write(tmp_path / "keys.yaml", {"id": "team", "tenant": "a"}, {"id": "ops", "role": "operator"}))
    async with (
        GatewayRig(config={"keys_file": keys}) as gateway,
        ConsoleRig(fleet="127.0.0.1:1", gateway=address(gateway), keys_file=keys) as rig,
    ):
        await gateway.add(text_worker("w-1"))
        for key in ("team", "ops"):
            assert events(await asked(await rig.signed_in(key), max_tokens=2))[-1]["done"]["completion_tokens"] == 2


async def test_an_answer_that_nobody_reads_any_more_is_cancelled() -> None:
    async with GatewayRig() as gateway:
        worker = text_worker("w-1", token_seconds=0.01)
        await gateway.add(worker)
        async with AsyncClient(address(gateway)) as client:
            answer = told(client.stream(messages=CHAT, max_tokens=1000, ignore_eos=True), address(gateway))
            await anext(answer)
            await answer.aclose()
            await until(lambda: len(worker.cancelled) == 1)


async def test_when_the_gateway_is_gone_the_chat_says_so() -> None:
    async with ConsoleRig(fleet="127.0.0.1:1", gateway="127.0.0.1:1") as rig:
        browser, problem = rig.browser(), "The gateway at 127.0.0.1:1 does not answer."
        models = await browser.get("/chat/models")
        assert (models.status_code, models.json()) == (503, {"problem": problem})
        assert events(await asked(browser)) == [{"problem": problem}]
