"""The whole stack as `polyfleet serve` starts it, once for all tests that only talk to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.ports import free_address
from tests.support.serve_process import ServeProcess


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A ready stack with the small model, one worker and a console."""
    port = free_address().rpartition(":")[2]
    yield from serving(tmp_path_factory.mktemp("stack"), "--console-port", port)


@pytest.fixture(scope="module")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The same, for a module that breaks things."""
    yield from serving(tmp_path_factory.mktemp("own_stack"))


def serving(state_dir: Path, *arguments: str) -> Iterator[ServeProcess]:
    serve = ServeProcess(state_dir, *arguments).start()
    try:
        yield serve.wait_ready()
    finally:
        serve.stop()
