"""The examples of docs/clients.md run as they stand, against a gateway whose worker answers as told."""

import asyncio
import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig
from tests.support.text_assets import assets_document, byte_level_tokenizer

DOCUMENT = (Path(__file__).parents[3] / "docs" / "clients.md").read_text(encoding="utf-8")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PERSON = '{"name": "Ann", "age": 41}'


def code(section: str) -> str:
    """The indented lines of a section."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.MULTILINE)
    return "\n".join(dedent(block) for block in blocks)


PREFACE, *SECTIONS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
EXAMPLES = {name: code(body) for name, _, body in (section.partition("\n") for section in SECTIONS)}
QUICK = ("openai", "polyfleet")  # the others' libraries take their time to import


class Answers:
    """Calls the tool, describes a person or says something, as the chat's end wants it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], list[int]] = {}

    def token(self, prompt: Any, index: int, choice: int) -> int:
        """The answer's token."""
        tokenizer, key = byte_level_tokenizer(), tuple(prompt)
        if key not in self._known:
            text = tokenizer.decode(list(prompt), skip_special_tokens=False)
            last = text.split("<|im_start|>")[-2]
            said = "It is cold." if "tool_response" in last or "<tools>" not in text else CALL
            self._known[key] = [*tokenizer.encode(PERSON if "person" in last else said).ids, 2]
        return self._known[key][index]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EXAMPLES]
)
async def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    options: Any = {"assets": assets_document(), "vocabulary_size": VOCABULARY, "end_token_ids": [2]}
    async with GatewayRig() as rig:
        await rig.add(FakeWorker("w-1", MODEL, tokens=Answers().token, **options))
        address = f"127.0.0.1:{rig.gateway.grpc.port}"
        scope: dict[str, Any] = {"__name__": "example"}
        exec(code(PREFACE), scope)
        scope |= {"BASE_URL": rig.http, "MODEL": MODEL, "GRPC_ADDRESS": address}
        await asyncio.to_thread(exec, EXAMPLES[name], scope)
    printed = capsys.readouterr().out
    assert "It is cold." in printed or "Ann" in printed or "Paris" in printed
