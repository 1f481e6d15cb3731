"""The HTTP application on a real port over a fake core."""

from collections.abc import Iterator

import httpx2 as httpx
import openai
import pytest
from tests.support.fake_generation import FakeGeneration, gateway_state
from tests.support.http_server import serve_http

from polyfleet.gateway.http import create_app
from polyfleet.gateway.parts import GatewayParts


@pytest.fixture(scope="module")
def core() -> FakeGeneration:
    return FakeGeneration()


@pytest.fixture(scope="module")
def state(core: FakeGeneration) -> GatewayParts:
    return gateway_state(core)


@pytest.fixture(scope="module")
def url(state: GatewayParts) -> Iterator[str]:
    """Its address, without a path."""
    with serve_http(create_app(state)) as url:
        yield url


@pytest.fixture
def generation(core: FakeGeneration) -> FakeGeneration:
    """The core, as good as new."""
    core.reset()
    return core


@pytest.fixture
def client(url: str, generation: FakeGeneration) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def http(url: str, generation: FakeGeneration) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        yield http
