"""The HTTP port takes any bytes: what comes back is no fault of ours, and every error has OpenAI's body."""

import asyncio
import re

import msgspec
import pytest
from tests.support.bad_requests import BadRequest, bad_requests, request
from tests.support.gateway_rig import GatewayRig, text_worker, until
from tests.support.watched_log import no_faults_logged

from polyfleet.gateway.http.errors import ErrorBody
from polyfleet.process.within import Within

SEED = 20_253
AT_ONCE = 16
SILENCE_SECONDS = 1.0  # no answer for so long: the server waits for the rest of a request that never comes
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n(.*?)\r\n\r\n", re.S)
ALLOWED = {200, 400, 404, 405, 408, 413, 415, 429, 431}
GOOD = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":3}'


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
async def test_any_bytes_get_an_answer_for_the_caller(count: int) -> None:
    with no_faults_logged() as faults:
        async with GatewayRig() as rig:
            worker = text_worker("w-1", context_length=64)
            await rig.add(worker)
            seen: dict[int, int] = {}
            cases = bad_requests(SEED, count)

            async def send_some() -> None:
                for case in cases:
                    for status in check(case, await answer(rig, case)):
                        seen[status] = seen.get(status, 0) + 1
                    assert faults == [], case

            await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))
            assert seen[400] > count / 3
            assert seen[200] > count / 20
            good = BadRequest(0, 0, True, request("/v1/chat/completions", GOOD))
            assert check(good, await answer(rig, good)) == [200]
            await until(lambda: rig.gateway.ledger.running == 0 and not worker.sequences)
            rig.gateway.ledger.check()


async def answer(rig: GatewayRig, case: BadRequest) -> bytes:
    """All that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(rig.http.rpartition(":")[2]))
    parts: list[bytes] = []
    try:
        writer.write(case.data)
        while part := await (reader.read(65536) if case.whole else _read_or_end(reader, writer)):
            parts.append(part)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return b"".join(parts)


async def _read_or_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    try:
        with Within(SILENCE_SECONDS):
            return await reader.read(65536)
    except asyncio.TimeoutError:  # in 3.10 not yet the built-in one
        writer.write_eof()
        return await reader.read(65536)


def check(case: BadRequest, data: bytes) -> list[int]:
    """The statuses in `data`, which is one answer or several."""
    statuses = []
    for match in STATUS.finditer(data):
        status = int(match[1])
        statuses.append(status)
        if status < 200:
            continue
        assert status in ALLOWED, (status, case, data[:500])
        length = re.search(rb"content-length: (\d+)", match[2].lower())
        if status >= 400 and length and b"HEAD" not in case.data:
            error = msgspec.json.decode(data[match.end() :][: int(length[1])], type=ErrorBody, strict=True).error
            assert error.message, case
    assert statuses or not case.whole, (case, data[:200])
    assert not data or data.startswith(b"HTTP/1.1 "), (case, data[:200])
    return statuses
