"""A scripted gateway and our client of it."""

from collections.abc import Iterator

import pytest
from tests.support.scripted_inference import QUICK, Script, serve, two_choices

from polyfleet import client as pf


@pytest.fixture
def script() -> Iterator[Script]:
    with serve(two_choices) as script:
        yield script


@pytest.fixture
def client(script: Script) -> Iterator[pf.Client]:
    with pf.Client(script.address, api_key="secret", retry=QUICK) as client:
        yield client
