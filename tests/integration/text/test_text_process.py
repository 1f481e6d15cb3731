"""The process that makes prompts: bounded in time and memory, and started again when one of them breaks it."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
from tests.support.text_assets import assets_document

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import DeadlineExceeded, ResourceExhausted
from polyfleet.gateway.prompts import prompts as prompts_module
from polyfleet.gateway.prompts.prompts import LONG_CHARACTERS, Prompts
from polyfleet.gateway.prompts.text_process import TextProcess
from polyfleet.process.within import Within
from polyfleet.text.errors import TextAssetsError
from polyfleet.text.process import EncodeChat, Encoded, EncodeText
from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Chat, Message
from polyfleet.wire.structure import Structure

LATER = "{% if messages[0].content == 'now' %}HOSTILE{% endif %}{{ messages[0].content }}"  # harmless when it is tried
FOREVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
FOREVER += "{% endfor %}"
HUNGRY = [
    "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{{ 'x'.ljust(10**10) }}",
    "{{ 'x'.center(3 * 10**9) | length }}",
    "{{ '%4000000000d' % 1 }}",
    "{{ '{:4000000000}'.format(1) }}",
    "{{ ('x' * 10**7).replace('x', 'y' * 1000) | length }}",
    "{{ (['x' * 10**6] * 10**4) | join('y') | length }}",
    "{{ range(99999) | map('string') | batch(10**9, 'x' * 10**6) | list | length }}",
    "{{ ('x\n' * 10**6) | indent(10**4) | length }}",
    "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('x' * 10**6) }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
]


@asynccontextmanager
async def text_process(idle_seconds: float = 60, max_waiting: int = 9, **assets: Any) -> AsyncIterator[TextProcess]:
    process = TextProcess(assets_document(**assets), max_waiting, idle_seconds)
    try:
        yield process
    finally:
        await process.close()


def chat(content: str, seconds: float = 20.0) -> EncodeChat:
    return EncodeChat(seconds, Chat((Message("user", content),)))


async def encoded(process: TextProcess, text: str) -> list[int]:
    answer = await process.run(EncodeText(20.0, text))
    assert isinstance(answer, Encoded)
    return list(array("I", answer.token_ids))


async def test_it_gives_what_the_model_text_gives() -> None:
    here = PromptText(assets_document())
    async with text_process() as process:
        for text in ("The quick fox", "é😀 <|im_end|>", ""):
            assert await encoded(process, text) == here.encode(text)
        answer = await process.run(EncodeChat(20.0, Chat((Message("user", ("a", "<|im_end|>"), "me"),)), pieces=True))
        expected = here.encode_chat([Message("user", ("a", "<|im_end|>"), "me")])
        assert isinstance(answer, Encoded)
        assert list(array("I", answer.token_ids)) == expected.token_ids
        assert list(answer.pieces) == here.pieces(expected.token_ids)
        assert answer.end_token_ids == expected.end_token_ids == (2,)
        for bad in (EncodeText(20.0, "a\ud800"), chat("a\ud800")):
            with pytest.raises(FieldError, match="surrogate"):
                await process.run(bad)


async def test_one_that_is_closed_while_it_starts_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with text_process() as process:
        asked = asyncio.ensure_future(encoded(process, "fox"))
        while process.pid is None:
            await asyncio.sleep(0.001)
        assert process._process is not None
        assert process._process.loading
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not caplog.records


async def test_more_tokens_than_wanted_are_counted() -> None:
    async with text_process() as process:
        answer = await process.run(EncodeText(20.0, "dog " * 10, max_tokens=5, pieces=True))
    assert isinstance(answer, Encoded)
    assert (answer.num_tokens > 5, answer.token_ids, answer.pieces) == (True, b"", ())


@pytest.mark.parametrize("hostile", HUNGRY)
async def test_a_template_that_wants_all_memory_is_stopped(hostile: str) -> None:
    async with text_process(chat_template=LATER.replace("HOSTILE", hostile)) as process:
        before = await encoded(process, "fox")
        with pytest.raises(FieldError) as caught:
            await process.run(chat("now"))
        assert caught.value.field == "messages"
        assert len(caught.value.problem) < 300
        assert await encoded(process, "fox") == before


async def test_a_template_that_never_ends_is_stopped() -> None:
    async with text_process(chat_template=LATER.replace("HOSTILE", FOREVER)) as process:
        before, pid = await encoded(process, "fox"), process.pid
        with pytest.raises(FieldError, match=r"took longer than 0\.3 s in the model's chat template"):
            await process.run(chat("now", seconds=0.3))
        assert await encoded(process, "fox") == before
        assert process.pid != pid


async def test_a_template_that_never_ends_when_tried_leaves_the_tokenizer() -> None:
    async with text_process(chat_template=FOREVER) as process:
        with pytest.raises(FieldError, match=r"took longer than 0\.3 s"):
            await process.run(chat("now", seconds=0.3))
        assert await encoded(process, "fox")


async def test_a_killed_process_costs_one_request() -> None:
    async with text_process(chat_template=LATER.replace("HOSTILE", FOREVER)) as process:
        before = await encoded(process, "fox")
        running = asyncio.create_task(process.run(chat("now")))
        waiting = asyncio.create_task(process.run(EncodeText(20.0, "fox")))
        await asyncio.sleep(0.1)
        assert process.pid is not None
        psutil.Process(process.pid).kill()
        with pytest.raises(FieldError, match="messages"):
            await running
        assert list(array("I", (await waiting).token_ids)) == before  # type: ignore[union-attr]


async def test_jobs_sent_ahead_survive_one_that_breaks_the_process() -> None:
    async with text_process(max_waiting=99, chat_template=LATER.replace("HOSTILE", FOREVER)) as process:
        before = {text: await encoded(process, text) for text in ("fox", "dog dog", "The quick fox")}
        texts = [*before] * 5
        jobs = [process.run(EncodeText(20.0, text)) for text in texts]
        hostile = process.run(chat("now", seconds=0.3))
        results = await asyncio.gather(*jobs[:7], hostile, *jobs[7:], return_exceptions=True)
        assert isinstance(results.pop(7), FieldError)
        for text, answer in zip(texts, results, strict=True):
            assert isinstance(answer, Encoded)
            assert list(array("I", answer.token_ids)) == before[text]


async def test_a_caller_who_leaves_gives_the_process_back() -> None:
    async with text_process(chat_template=LATER.replace("HOSTILE", FOREVER)) as process:
        await encoded(process, "fox")
        with pytest.raises(asyncio.TimeoutError), Within(0.1):
            await process.run(chat("now", seconds=600.0))
        with Within(30):
            assert await encoded(process, "fox")


async def test_waiting_jobs_are_bounded_and_may_leave() -> None:
    async with text_process(chat_template=LATER.replace("HOSTILE", FOREVER), max_waiting=2) as process:
        await encoded(process, "fox")
        running = asyncio.create_task(process.run(chat("now", seconds=600.0)))
        waiting = [asyncio.create_task(process.run(EncodeText(20.0, "fox"))) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(ResourceExhausted, match="Too many prompts"):
            await process.run(EncodeText(20.0, "fox"))
        waiting[0].cancel()
        await asyncio.sleep(0.05)
        waiting.append(asyncio.create_task(process.run(EncodeText(20.0, "fox"))))
        await asyncio.sleep(0.05)
        running.cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, Encoded, Encoded]


async def test_an_idle_process_ends_and_comes_back() -> None:
    async with text_process(idle_seconds=0.05) as process:
        before = await encoded(process, "fox")
        while process.pid is not None:
            await asyncio.sleep(0.01)
        assert await encoded(process, "fox") == before


async def test_assets_that_cannot_be_used_are_named() -> None:
    process = TextProcess(b"{}", 9, 60)
    with pytest.raises(TextAssetsError, match="missing required field `tokenizer`"):
        await process.run(EncodeText(20.0, "fox"))
    await process.close()


async def test_a_long_prompt_keeps_no_short_one_waiting() -> None:
    prompts = Prompts(assets_document(chat_template=LATER.replace("HOSTILE", FOREVER)), Limits())
    try:
        short = (await prompts.of_text("fox", 0, 20.0)).token_ids
        long = asyncio.create_task(prompts.of_text("dog " * LONG_CHARACTERS, 0, 60.0))
        assert (await prompts.of_text("fox", 0, 20.0)).token_ids == short
        assert not long.done()
        assert len(prompts.pids) == 2 or not long.done()
        assert (await long).num_tokens > LONG_CHARACTERS
        with pytest.raises(DeadlineExceeded):
            await prompts.of_chat(Chat((Message("user", "now"),)), 0, 0.05)
    finally:
        await prompts.close()


async def test_a_bomb_of_a_grammar_keeps_no_prompt_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_module, "JOB_SECONDS", 1.5)
    bomb = Structure(grammar="start: /(a|aa)+/ /(a|aa)+/ /b{1,50000}/")
    prompts = Prompts(assets_document(), Limits())
    try:
        grammar = asyncio.create_task(prompts.grammar(bomb, None, "", (), 60.0))
        assert (await prompts.of_text("fox", 0, 60.0)).num_tokens
        with pytest.raises(FieldError, match="to be made into a grammar"):
            await grammar
        monkeypatch.undo()
        assert await prompts.grammar(Structure(regex="a"), None, "", (), 60.0)
    finally:
        await prompts.close()


async def test_a_short_text_asks_no_process_once_it_is_known_how_short() -> None:
    prompts, here = Prompts(assets_document(), Limits()), PromptText(assets_document())
    try:
        await prompts.prepare()
        processes = [psutil.Process(pid) for pid in prompts.pids]
        for process in processes:
            process.suspend()
        short = await prompts.of_text("The quick fox <|im_end|>", 0, 20.0)
        assert list(short.token_ids) == here.encode("The quick fox <|im_end|>")
        assert short.num_tokens == len(short.token_ids)
        cut = await prompts.of_text("The quick fox", 1, 20.0)
        assert (cut.token_ids, cut.num_tokens) == ((), len(here.encode("The quick fox")))
        others = [prompts.of_text("fox " * 400, 0, 0.3), prompts.of_text("fox", 0, 0.3, pieces=True)]
        for other in others:  # these are the process's
            with pytest.raises(DeadlineExceeded):
                await other
        for process in processes:
            process.resume()
        assert list((await prompts.of_text("fox " * 400, 0, 20.0)).token_ids) == here.encode("fox " * 400)
    finally:
        await prompts.close()
