"""Our own client, sync and async, against a whole gateway with fake workers."""

import asyncio

import pytest
from tests.support.fake_worker import FakeWorker, fake_tokens
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, until
from tests.support.text_assets import byte_level_tokenizer

from polyfleet import client as pf


async def test_our_own_client(rig: GatewayRig, worker: FakeWorker) -> None:
    address = f"127.0.0.1:{rig.gateway.grpc.port}"
    async with pf.AsyncClient(address) as client:
        answer = await client.generate(token_ids=[5], max_tokens=12, n=2, logprobs=1)
        assert [list(c.token_ids) for c in answer.choices] == [fake_tokens([5], 12, c, VOCABULARY) for c in range(2)]
        assert [len(choice.logprobs) for choice in answer.choices] == [12, 12]
        assert (answer.worker_ids[0], answer.finish_reason) == ("w-1", "length")
        tokens = await client.tokenize("hello")
        assert list(tokens.token_ids) == byte_level_tokenizer().encode("hello").ids
        assert [model.name for model in await client.models()] == [MODEL]
        with pytest.raises(pf.NotFoundError, match=MODEL):
            await client.model("other")
        with pytest.raises(pf.InvalidArgumentError) as caught:
            await client.generate("a", temperature=float("nan"))
        assert [violation.field for violation in caught.value.field_violations] == ["sampling.temperature"]
        with pytest.raises(pf.InvalidArgumentError):
            await client.generate("a", token_ids=[1])
        worker.token_seconds = 0.01
        with pytest.raises(pf.DeadlineExceededError):
            await client.generate("a", max_tokens=1000, timeout=0.2)
        stream = client.stream("a", max_tokens=1000)
        await stream.__anext__()
        await stream.close()
        await until(lambda: not worker.sequences)


async def test_our_own_synchronous_client(rig: GatewayRig, worker: FakeWorker) -> None:
    def talk() -> tuple[str, tuple[tuple[float, ...], ...]]:
        with pf.Client(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
            return client.chat([pf.Message("user", "hi")], max_tokens=3).text, client.embed(["a"]).vectors

    text, vectors = await asyncio.to_thread(talk)
    generated = fake_tokens(list(worker.started[0].prompt_ids), 3, 0, VOCABULARY)
    assert text == byte_level_tokenizer().decode(generated, skip_special_tokens=True)
    assert len(vectors[0]) == worker.hidden_size
