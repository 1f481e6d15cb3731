"""The texts of the models that are served: fetched, and why one can't be used."""

import asyncio
from typing import Any

import pytest

from polyfleet.gateway.fleet.tokenizers import Tokenizers
from polyfleet.process.within import Within
from polyfleet.text.errors import TextAssetsError


class Changed:
    """Who is told that something changed."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def call(self) -> None:
        self.event.set()


@pytest.mark.parametrize(
    ("document", "told"), [(b"not JSON", "not JSON"), (RuntimeError("a fault"), "its log says why")]
)
async def test_one_that_cannot_be_used_is_told_and_waited_for_no_more(document: bytes | Exception, told: str) -> None:
    async def fetch(_: str) -> bytes:
        if isinstance(document, Exception):
            raise document
        return document

    changed: Any = Changed()
    tokenizers = Tokenizers(fetch, changed, lambda _: pytest.fail("there is nothing to make prompts with"))
    tokenizers.want(["a"])
    with Within(60):
        await changed.event.wait()
    with pytest.raises(TextAssetsError, match=told):
        tokenizers.get("a")
    tokenizers.want([])
    assert tokenizers.get("a") is None
    await tokenizers.close()
