"""Images through a real gateway: every API hands them to workers that see, as the model's files want them cut."""

import asyncio
import base64
from pathlib import Path
from textwrap import dedent
from typing import Any

import grpc
import httpx2 as httpx
import pytest
from tests.support import tiny_vision
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, GatewayRig, Stream, failure_of, until
from tests.support.http_server import serve_http
from tests.support.tiny_vision import SIDE, STATED, encoded, picture

from polyfleet.client import AsyncClient, Image, Message
from polyfleet.text.images import ImageSettings, prepare
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.features import FEATURES, IMAGES

DATA = encoded(picture(50, 30))
BASE64 = base64.b64encode(DATA).decode()
URL = f"data:image/png;base64,{BASE64}"
CROPS = 5
PATH = "messages[0].content[0]"
DOCUMENT = (Path(__file__).parents[3] / "docs" / "clients.md").read_text(encoding="utf-8")
EXAMPLE = dedent(
    DOCUMENT.partition("## Images by their URLs\n")[2].partition("take it too.\n")[2].partition("\n## ")[0]
)


def seeing(worker_id: str, *features: str, assets: bytes = tiny_vision.document(), **options: Any) -> FakeWorker:
    worker = FakeWorker(worker_id, MODEL, assets=assets, vocabulary_size=tiny_vision.VOCABULARY, **options)
    worker.features = (*FEATURES, *features)
    return worker


def shown(*images: bytes, **more: Any) -> pb.GenerateRequest:
    parts = [pb.ContentPart(image=each) for each in images]
    message = pb.ChatMessage(role="user", parts=[*parts, pb.ContentPart(text="What is it?")])
    return pb.GenerateRequest(messages=[message], **{"model": MODEL, "max_tokens": 2, **more})


def chat(url: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}, {"type": "text", "text": "What is it?"}]
    return {"model": MODEL, "messages": [{"role": "user", "content": parts}], "max_tokens": 2}


def bodies(url: str, source: dict[str, str]) -> dict[str, dict[str, Any]]:
    """One request by each API over HTTP; `source` is as Anthropic's has it."""
    block = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    item = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What is it?"}]
    return {
        "/v1/chat/completions": chat(url),
        "/v1/responses": {"model": MODEL, "input": [{"role": "user", "content": item}], "max_output_tokens": 2},
        "/v1/messages": {"model": MODEL, "messages": [{"role": "user", "content": block}], "max_tokens": 2},
    }


async def test_every_api_shows_the_same() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": BASE64}
    sees, blind = seeing("w-1", IMAGES), seeing("w-2")
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http) as http:
        await rig.add(sees, blind)
        usage = (await Stream.read(rig.stub.Generate(shown(DATA)))).usage
        async with AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
            await client.chat([Message("user", (Image(DATA), "What is it?"))], model=MODEL, max_tokens=2)
        for path, body in bodies(URL, source).items():
            assert (await http.post(path, json=body)).status_code == 200
        counted = await http.post("/tokenize", json={"model": MODEL, "messages": chat(URL)["messages"]})
    assert len(sees.started) == 5
    assert not blind.started
    first = sees.started[0]
    assert all((each.prompt_ids, each.images) == (first.prompt_ids, first.images) for each in sees.started)
    assert list(first.prompt_ids).count(tiny_vision.IMAGE_ID) == CROPS * tiny_vision.ROWS
    assert first.images[0].pixels == prepare(DATA, ImageSettings(**STATED))[1]
    assert len(first.images[0].pixels) == CROPS * SIDE * SIDE * 3
    assert usage.prompt_tokens == len(first.prompt_ids) == counted.json()["count"]


async def test_an_image_by_its_url_is_fetched_from_hosts_that_are_allowed() -> None:
    """By every API, as it would be if it came along; what is not there is named."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        status = 200 if scope["path"] == "/a" else 404
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": DATA if status == 200 else b""})

    with serve_http(app) as there:
        worker, config = seeing("w-1", IMAGES), {"image_hosts": (there,)}
        async with GatewayRig(config=config) as rig, httpx.AsyncClient(base_url=rig.http) as http:
            await rig.add(worker)
            url = f"{there}/a"
            async with AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
                for part in (Image(url=url), Image(DATA)):
                    await client.chat([Message("user", (part, "What is it?"))], model=MODEL, max_tokens=2)
            for path, body in bodies(url, {"type": "url", "url": url}).items():
                assert (await http.post(path, json=body)).status_code == 200
            scope = {"BASE_URL": rig.http, "MODEL": MODEL, "IMAGE_URL": url}
            await asyncio.to_thread(exec, EXAMPLE, scope)
            for gone, problem in (
                (f"{there}/b", "could not be fetched: the host answered with status 404"),
                ("https://169.254.169.254/a", "must be of a host that this server's operator allows"),
            ):
                error = (await http.post("/v1/chat/completions", json=chat(gone))).json()["error"]
                assert (error["param"], error["type"]) == (f"{PATH}.image_url", "invalid_request_error")
                assert problem in error["message"]
    assert len(worker.started) == 6
    assert all(each.images == worker.started[0].images for each in worker.started)


async def test_images_move_with_their_sequence() -> None:
    first, second = seeing("w-1", IMAGES, token_seconds=0.001), seeing("w-2", IMAGES)
    async with GatewayRig() as rig:
        await rig.add(first)
        first.drop_after(5)
        call = asyncio.create_task(Stream.read(rig.stub.Generate(shown(DATA, max_tokens=20))))
        await until(lambda: bool(first.started) or call.done())
        first.refusal = (14, "going")
        await rig.add(second)
        assert len((await call).ids()) == 20
    assert second.started[0].generated_ids
    assert second.started[0].images == first.started[0].images


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_images_that_come_over_http_move_with_their_sequence(path: str) -> None:
    first, second = seeing("w-1", IMAGES, token_seconds=0.001), seeing("w-2", IMAGES)
    body = bodies(URL, {"type": "base64", "data": BASE64})[path]
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 20
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, timeout=60) as http:
        await rig.add(first)
        first.drop_after(5)
        call = asyncio.create_task(http.post(path, json=body))
        await until(lambda: bool(first.started) or call.done())
        first.refusal = (14, "going")
        await rig.add(second)
        usage = (await call).json()["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 20
    assert second.started[0].generated_ids
    assert second.started[0].images == first.started[0].images


async def test_what_can_not_be_shown_is_named() -> None:
    """Others go on meanwhile."""
    worker, reads = seeing("w-1", IMAGES), seeing("w-2", assets=tiny_vision.document(images=None))
    reads.model = "reads"
    async with (
        GatewayRig(queue_timeout=0.2) as rig,
        httpx.AsyncClient(base_url=rig.http) as http,
    ):
        await rig.add(worker, reads)
        for url, param, problem in (
            ("data:image/png;base64,aGVsbG8=", PATH, "is no image of a kind that is read"),
            (URL[:-400], PATH, "is a truncated or corrupt image"),
            ("data:image/png;base64,@@@", f"{PATH}.image_url", "is no valid base64"),
            ("data:text/plain;base64,aGVsbG8=", f"{PATH}.image_url", "must be of an image, not of text/plain"),
            ("https://169.254.169.254/a.png", f"{PATH}.image_url", "this server fetches no images"),
            ("", f"{PATH}.image_url", "is missing"),
        ):
            refused, other = await asyncio.gather(
                http.post("/v1/chat/completions", json=chat(url)),
                http.post("/v1/chat/completions", json={**chat(URL), "messages": [{"role": "user", "content": "Hi"}]}),
            )
            error = refused.json()["error"]
            assert (refused.status_code, error["param"], other.status_code) == (400, param, 200)
            assert problem in error["message"]
        for request, problem in (
            (shown(*[DATA] * 17), "messages: may show 16 images at most, not 17"),
            (shown(DATA, model="reads"), "messages: show images, but this model sees none"),
        ):
            assert problem in (await failure_of(rig.stub.Generate(request))).message
        worker.features = FEATURES
        rig.fleet.workers[worker.worker_id].info.CopyFrom(worker.info())
        rig.fleet.publish()
        await asyncio.sleep(0.1)
        assert (await failure_of(rig.stub.Generate(shown(DATA)))).code is grpc.StatusCode.UNAVAILABLE
