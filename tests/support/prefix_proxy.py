"""A reverse proxy as people put before the console: it takes a prefix off, streams what comes, and tells of its TLS."""

from collections.abc import AsyncIterator

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

METHODS = ["GET", "POST"]
OWN = {"host", "connection", "transfer-encoding"}  # headers that are between two of them alone


def prefix_proxy(upstream: str, prefix: str) -> Starlette:
    """What is asked for under `prefix` is asked of `upstream` without it; all else is not there."""

    async def pass_on(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.raw if name.decode() not in OWN]
        forwarded = [(b"host", request.headers["host"].encode()), (b"x-forwarded-proto", request.url.scheme.encode())]
        client = httpx2.AsyncClient(timeout=None)
        address = f"{upstream}{request.url.path.removeprefix(prefix)}?{request.url.query}"
        asked = client.build_request(
            request.method, address, headers=[*headers, *forwarded], content=await request.body()
        )
        answer = await client.send(asked, stream=True)

        async def body() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            finally:
                await client.aclose()

        passed = StreamingResponse(body(), answer.status_code)
        passed.raw_headers = [each for each in answer.headers.raw if each[0].lower().decode() not in OWN]
        return passed

    return Starlette(routes=[Route(f"{prefix}{{rest:path}}", pass_on, methods=METHODS)])
