"""What an agent's tunnel says that can't join."""

import asyncio
import logging
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_fleet import FakeFleet
from tests.support.tls_files import write_tls_files

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


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("certificate", "why"),
    [
        ({"age": 2 * DAY, "lasting": DAY}, "The certificate of ADDRESS has expired"),
        ({"age": -DAY}, "The certificate of ADDRESS is not valid yet"),
        ({"name": "other.example"}, "The certificate of ADDRESS is for other names"),
    ],
)
async def test_why_a_gateways_certificate_is_not_taken(certificate: dict[str, Any], why: str, tmp_path: Path) -> None:
    chain, key = write_tls_files(tmp_path, **certificate)
    async with TlsPort(chain, key) as address:
        assert (await reason_of(JoinConfig(address, ca_file=chain))).startswith(why.replace("ADDRESS", address))


async def test_roots_and_ports_that_do_not_belong_together_are_told(tmp_path: Path) -> None:
    chain, key = write_tls_files(tmp_path)
    (other := tmp_path / "other").mkdir()
    async with TlsPort(chain, key) as address, FakeFleet() as plain:
        strangers = await reason_of(JoinConfig(address, ca_file=write_tls_files(other)[0]))
        assert strangers.startswith(f"The certificate of {address} is not trusted: name")
        assert (await reason_of(JoinConfig(address))).startswith(f"{address} speaks no gRPC in the clear")
        assert (await reason_of(JoinConfig(plain.address, ca_file=chain))).startswith(f"{plain.address} speaks no TLS")


class TlsPort:
    """A port that shakes hands with this certificate, and no more. Yields its address."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(chain, key)
        self._context.set_alpn_protocols(["h2"])

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=self._context)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *error: object) -> None:
        self._server.close()


async def reason_of(join: JoinConfig) -> str:
    """Why an agent can't join there."""
    return await Tunnel(join, FleetAccess(), "mac", "p-1", lambda *_: None)._stay()


async def test_who_dials_the_fleet_before_the_agent_has_joined_is_turned_away() -> None:
    tunnel = Tunnel(JoinConfig("127.0.0.1:1"), FleetAccess(), "mac", "p-1", lambda *_: None)
    await tunnel.open("127.0.0.1:2", "127.0.0.1:3")
    reader, writer = await asyncio.open_connection(*tunnel.fleet_address.split(":"))
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_roots_that_are_none_are_named(content: str | None, tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    if content is not None:
        roots.write_text(content)
    with pytest.raises(ConfigError, match=f"{roots} (can't be read|has no certificate in PEM)"):
        Tunnel(JoinConfig("host:1", ca_file=roots), FleetAccess(), "mac", "p-1", lambda *_: None)
