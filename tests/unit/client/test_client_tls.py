"""TLS of both clients: the right authority, the wrong one, another name, no TLS at all, mutual TLS."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.support.scripted_inference import Script, serve, two_choices
from tests.support.tls_files import write_tls_files

from polyfleet import client as pf


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_tls_files(tmp_path)


@pytest.fixture
def script(files: tuple[Path, Path]) -> Iterator[Script]:
    certificate, key = (path.read_bytes() for path in files)
    with serve(two_choices, credentials=grpc.ssl_server_credentials([(key, certificate)])) as script:
        yield script


def refused(script: Script, tls: pf.Tls | bool) -> None:
    client = pf.Client(script.address, tls=tls, retry=pf.NO_RETRIES, timeout=20)
    with client, pytest.raises(pf.UnavailableError):
        client.generate("a")


def test_trusted_gateway(script: Script, files: tuple[Path, Path]) -> None:
    with pf.Client(script.address, api_key="secret", tls=pf.Tls(ca_file=files[0])) as client:
        assert client.generate("a").text == "ab"
    assert script.metadata[0]["authorization"] == "Bearer secret"


async def test_trusted_gateway_async(script: Script, files: tuple[Path, Path]) -> None:
    async with pf.AsyncClient(script.address, tls=pf.Tls(ca_file=files[0])) as client:
        assert (await client.generate("a")).text == "ab"


@pytest.mark.parametrize("tls", [True, False])
def test_gateway_that_is_not_trusted(script: Script, tls: bool) -> None:
    refused(script, tls)
    assert script.calls == []


def test_name_in_the_certificate(script: Script, files: tuple[Path, Path]) -> None:
    with pf.Client(script.address, tls=pf.Tls(ca_file=files[0], server_name="localhost")) as client:
        assert client.generate("a").text == "ab"
    refused(script, pf.Tls(ca_file=files[0], server_name="elsewhere"))


def test_mutual_tls(files: tuple[Path, Path]) -> None:
    certificate, key = (path.read_bytes() for path in files)
    mutual = grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
    with serve(two_choices, credentials=mutual) as script:
        known = pf.Tls(ca_file=files[0], certificate_file=files[0], key_file=files[1])
        with pf.Client(script.address, tls=known) as client:
            assert client.generate("a").text == "ab"
        refused(script, pf.Tls(ca_file=files[0]))


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pf.Client("127.0.0.1:1", tls=pf.Tls(ca_file=tmp_path / "none.pem"))
