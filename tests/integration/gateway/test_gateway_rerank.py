"""Documents are ranked by what the worker computes for each with the query, or by the cosine of vectors."""

import math
from typing import Any

import grpc
import pytest
from tests.support.fake_worker import FakeWorker, fake_embedding
from tests.support.gateway_rig import GatewayRig, failure_of, text_worker
from tests.support.text_assets import assets_document
from tests.support.tiny_encoders import tokenizer

from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb

DOCUMENTS = ["a cab", "bad [SEP] face", "h"]
QUERY = "dead"


class Ranker(FakeWorker):
    """A fake cross encoder, or embedder."""

    def __init__(self, *, pairs: bool = True, context_length: int = 24) -> None:
        assets = assets_document(tokenizer(), chat_template=None, eos_token="[SEP]", end_token_ids=[])
        super().__init__("w-1", assets=assets, hidden_size=1 if pairs else 8, context_length=context_length)
        self.pairs = pairs

    def info(self) -> fleet_pb2.WorkerInfo:
        info = super().info()
        info.model.cross_encoder, info.model.embeds_only = self.pairs, True
        info.model.pooling = pb.POOLING_CLS if self.pairs else pb.POOLING_MEAN
        return info


async def test_a_cross_encoder_reads_each_document_with_the_query() -> None:
    worker = Ranker()
    async with GatewayRig() as rig:
        await rig.add(worker)
        done = await rig.stub.Rerank(pb.RerankRequest(query=QUERY, documents=DOCUMENTS))
        best = await rig.stub.Rerank(pb.RerankRequest(query=QUERY, documents=DOCUMENTS, top_n=1))
        cut = await rig.stub.Rerank(pb.RerankRequest(query=QUERY, documents=["a " * 99], max_tokens_per_doc=2))
    pair = tokenizer()
    prompts = [list(each.prompt_ids) for each in worker.started]
    assert prompts[0::2][:2] == [pair.encode(QUERY, DOCUMENTS[at]).ids for at in (0, 2)]
    assert prompts[1].count(3) == 2  # what a document spells is text
    assert {(each.segment_start, each.pooling) for each in worker.started} == {
        (len(pair.encode(QUERY).ids), pb.POOLING_CLS)
    }
    scores = [fake_embedding(each, 1)[0] for each in prompts[:3]]
    order = sorted(range(3), key=lambda at: -scores[at])
    assert [each.index for each in done.results] == order
    assert [each.relevance_score for each in done.results] == pytest.approx([scores[at] for at in order])
    assert done.usage.prompt_tokens == sum(map(len, prompts[:3]))
    assert list(best.results) == list(done.results[:1])
    assert len(cut.results) == 1
    assert prompts[-1] == pair.encode(QUERY, "a a").ids


async def test_documents_are_cut_where_the_context_ends() -> None:
    worker = Ranker(context_length=12)
    async with GatewayRig() as rig:
        await rig.add(worker)
        await rig.stub.Rerank(pb.RerankRequest(query=QUERY, documents=["a b c d e f g h i j k l"]))
        failure = await failure_of(rig.stub.Rerank(pb.RerankRequest(query="a " * 11, documents=["a"])))
    assert len(worker.started[0].prompt_ids) == 12
    assert worker.started[0].prompt_ids[-1] == 3
    assert failure.code == grpc.StatusCode.INVALID_ARGUMENT
    assert "query: is 11 tokens long, which leaves no room for a document" in failure.message


async def test_an_embedder_ranks_by_cosine() -> None:
    worker = Ranker(pairs=False)
    async with GatewayRig() as rig:
        await rig.add(worker)
        done = await rig.stub.Rerank(pb.RerankRequest(query=QUERY, documents=DOCUMENTS))
        await rig.stub.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(text="a")]))
    *documents, query = [fake_embedding(list(each.prompt_ids), 8) for each in worker.started[:4]]
    assert list(worker.started[3].prompt_ids) == tokenizer().encode(QUERY).ids
    expected = [sum(map(math.prod, zip(query, each, strict=True))) for each in documents]
    expected = [dot / math.hypot(*query) / math.hypot(*each) for dot, each in zip(expected, documents, strict=True)]
    found = {each.index: each.relevance_score for each in done.results}
    assert [found[at] for at in range(3)] == pytest.approx(expected)
    assert [each.relevance_score for each in done.results] == sorted(found.values(), reverse=True)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (pb.RerankRequest(query="q"), "documents: must be 1 to 1000, not 0"),
        (pb.RerankRequest(documents=["a"]), "query: must be 1 character or more"),
        (pb.RerankRequest(query="q", documents=["a", ""]), "documents[1]: must be 1 character or more"),
        (pb.RerankRequest(query="q", documents=["a"] * 1001), "documents: must be at most 1000, not 1001"),
        (pb.EmbedRequest(inputs=[pb.EmbedInput(text="a")]), "is a cross encoder, which makes no embeddings"),
        (pb.GenerateRequest(text="a"), "is a cross encoder and generates nothing"),
    ],
)
async def test_what_is_refused(request_: Any, problem: str) -> None:
    async with GatewayRig() as rig:
        await rig.add(Ranker())
        method = getattr(rig.stub, type(request_).__name__.removesuffix("Request"))
        failure = await failure_of(method(request_))
    assert failure.code == grpc.StatusCode.INVALID_ARGUMENT
    assert problem in failure.message


async def test_a_model_that_generates_text_ranks_nothing() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        failure = await failure_of(rig.stub.Rerank(pb.RerankRequest(query="q", documents=["a"])))
    assert "fake generates text; documents are ranked by cross encoders and embedders" in failure.message
