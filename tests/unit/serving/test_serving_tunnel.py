"""What an agent's tunnel says that can't join."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.support.fake_fleet import FakeFleet

from polyfleet.process.channels import FleetAccess
from polyfleet.process.config import ConfigError
from polyfleet.serving.agent.config import JoinConfig
from polyfleet.serving.agent.tunnel import Tunnel


async def test_a_port_that_is_no_gateways_is_named_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeFleet() as fleet:
        tunnel = Tunnel(JoinConfig(fleet.address), FleetAccess(), "mac", "p-1", lambda *_: None)
        running = asyncio.create_task(tunnel.run())
        said = f"Not joined at {fleet.address}: it is no gateway: --join wants the gRPC port of one"
        while caplog.messages.count(said) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    levels = [record.levelname for record in caplog.records if record.message == said]
    assert levels[:2] == ["WARNING", "DEBUG"], "the same reason is told once"


async def test_who_dials_the_fleet_before_the_agent_has_joined_is_turned_away() -> None:
    tunnel = Tunnel(JoinConfig("127.0.0.1:1"), FleetAccess(), "mac", "p-1", lambda *_: None)
    await tunnel.open("127.0.0.1:2", "127.0.0.1:3")
    reader, writer = await asyncio.open_connection(*tunnel.fleet_address.split(":"))
    assert await reader.read() == b""
    writer.close()


def test_roots_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match="/nowhere can't be read"):
        Tunnel(JoinConfig("host:1", ca_file=Path("/nowhere")), FleetAccess(), "mac", "p-1", lambda *_: None)
