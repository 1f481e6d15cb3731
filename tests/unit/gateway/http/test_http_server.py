"""The HTTP server's own loop."""

import asyncio

import pytest
from uvicorn import Config

from polyfleet.gateway.begins import Begins
from polyfleet.gateway.config import Limits
from polyfleet.gateway.http.connection import server
from polyfleet.gateway.ports.doors import Doors
from polyfleet.process.within import Within


async def test_a_server_at_rest_wakes_for_the_date_alone_and_ends_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(*_: object) -> None: ...

    monkeypatch.setattr(server, "DATE_SECONDS", 3600.0)
    served = server._Server(Config(app), Limits(), Doors(1, 1, lambda _: None), Begins())
    running = asyncio.create_task(served.main_loop())
    await asyncio.sleep(0)
    ((name, _),) = served.server_state.default_headers
    assert (name, running.done()) == (b"date", False)
    served.exit()
    with Within(60):
        await running
