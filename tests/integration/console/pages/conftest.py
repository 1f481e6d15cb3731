"""One stack and one browser for all tests here; each test is a visitor of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import CHROMIUM, NO_CHROMIUM, chromium
from tests.support.console_stack import ConsoleStack
from tests.support.vendor_workers import MACHINES

ROOT = Path(__file__).parents[4]
Visit = Callable[..., Any]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleStack]:
    """A fleet with a worker of every brand on a described machine, and the model `team/chat` on two fake ones."""
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    folder = tmp_path_factory.mktemp("console")
    with ConsoleStack(folder) as stack, (folder / "vendors.log").open("w") as log:
        command = [sys.executable, "-m", "tests.support.vendor_workers", stack.fleet_address, str(folder)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=dict(os.environ))
        try:
            stack.deploy("chat", "team/chat", workers=2)
            stack.until_serving(set(MACHINES))
            yield stack
        finally:
            process.kill()  # their engines end with it
            process.wait(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of one module: while it is open its event loop runs, and no other test can have one in this thread."""
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser: Any, stack: ConsoleStack) -> Iterator[Visit]:
    """`visit("/fleet", …)` gives a page of a fresh visitor; what it says to its console is a failure of the test."""
    contexts, said = list[Any](), list[str]()

    def opened(path: str, base: str = "", **options: Any) -> Any:
        context = browser.new_context(base_url=base or stack.open, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.goto(path)
        page.complaints = said
        return page

    yield opened
    for context in contexts:
        context.close()
