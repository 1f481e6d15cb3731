"""The examples of docs/clients.md run as they stand, against a gateway whose worker answers as told."""

import ast
import asyncio
import builtins
import os
import re
import shutil
import tempfile
from asyncio.subprocess import PIPE
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeGuard

import httpx2 as httpx
import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig
from tests.support.text_assets import assets_document, byte_level_tokenizer

DOCUMENT = (Path(__file__).parents[3] / "docs" / "clients.md").read_text(encoding="utf-8")
BUNDLED = "smollm2-135m-instruct"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PERSON = '{"name": "Ann", "age": 41}'


def code(section: str) -> str:
    """The indented lines of a section."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.MULTILINE)
    return "\n".join(dedent(block) for block in blocks)


PREFACE, *SECTIONS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
NAMED = {name: code(body) for name, _, body in (section.partition("\n") for section in SECTIONS)}
EXAMPLES = {name: example for name, example in NAMED.items() if name.isidentifier()}  # others are not Python
IN_NODE = {name: example for name, example in NAMED.items() if name.endswith(", in Node")}
INSTALLED = Path(tempfile.gettempdir()) / "polyfleet-clients"  # by `python -m bench.clients`
OTHER_FOLDERS = {"langchain_openai": "langchain"}
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


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXAMPLES, *IN_NODE])
async def test_the_example_runs_in_the_environment_that_the_bench_made(name: str, tmp_path: Path) -> None:
    options: Any = {"assets": assets_document(), "vocabulary_size": VOCABULARY, "end_token_ids": [2]}
    async with GatewayRig() as rig:
        await rig.add(FakeWorker("w-1", MODEL, tokens=Answers().token, **options))
        if name in EXAMPLES:
            program, script = INSTALLED / OTHER_FOLDERS.get(name, name) / "bin" / "python", tmp_path / "example.py"
            here = f"BASE_URL, MODEL = {rig.http!r}, {MODEL!r}"
            script.write_text("\n".join((code(PREFACE), here, EXAMPLES[name])))
        else:
            program, script = Path(shutil.which("node") or "node"), tmp_path / "example.mjs"
            (tmp_path / "node_modules").symlink_to(INSTALLED / "node" / "node_modules")
            script.write_text(IN_NODE[name].replace("http://127.0.0.1:8000", rig.http).replace(BUNDLED, MODEL))
        if not program.exists() or (name in IN_NODE and not (INSTALLED / "node").exists()):
            pytest.skip(f"{name} is not installed")
        environment = {**os.environ, "NO_PROXY": "*", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        run = await asyncio.create_subprocess_exec(program, script, stdout=PIPE, stderr=PIPE, env=environment)
        printed, errors = await run.communicate()
    assert run.returncode == 0, errors.decode()
    assert any(said in printed.decode() for said in ("It is cold.", "Ann", "Paris"))


DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False}
CITY = {**DRAFT, "properties": {"city": {"type": "string"}}, "required": ["city"]}
MAN = {**DRAFT, "properties": {"name": {"type": "string"}, "age": {"type": "number"}}, "required": ["name", "age"]}
ASKED = {"role": "user", "content": "How is the weather in Paris?"}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}


async def test_what_the_ai_sdk_sends_is_answered() -> None:
    options: Any = {"assets": assets_document(), "vocabulary_size": VOCABULARY, "end_token_ids": [2]}
    tool = {"name": "weather", "description": "The weather of a city.", "parameters": CITY}
    tools = {"tools": [{"type": "function", "function": tool}], "tool_choice": "auto"}
    turns = [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALLED]}]
    turns.append({"role": "tool", "tool_call_id": "call_1", "content": "3 degrees, rain"})
    form = {"type": "json_schema", "json_schema": {"schema": MAN, "strict": True, "name": "response"}}
    bodies: list[dict[str, Any]] = [
        {"messages": [ASKED], **tools},
        {"messages": turns, **tools},
        {"messages": [{"role": "user", "content": "Describe a person."}], "response_format": form},
    ]
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(FakeWorker("w-1", MODEL, tokens=Answers().token, **options))
        replies = [await http.post("/v1/chat/completions", json={"model": MODEL, **each}) for each in bodies]
    said = [reply.json()["choices"][0] for reply in replies]
    assert [each["finish_reason"] for each in said] == ["tool_calls", "stop", "stop"]
    assert [each["message"]["content"] for each in said] == [None, "It is cold.", PERSON]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_is_sound_whether_its_library_is_here_or_not(name: str) -> None:
    preface, example = ast.parse(code(PREFACE)), ast.parse(EXAMPLES[name])
    imported = {each.module or "" for each in ast.walk(example) if isinstance(each, ast.ImportFrom)}
    imported |= {alias.name for each in ast.walk(example) if isinstance(each, ast.Import) for alias in each.names}
    assert any(each.split(".")[0] == name for each in imported)
    bound = {each.id for tree in (preface, example) for each in ast.walk(tree) if _is_name(each, ast.Store)}
    bound |= {each.asname or each.name for each in ast.walk(example) if isinstance(each, ast.alias)}
    bound |= {each.name for each in ast.walk(example) if isinstance(each, (ast.ClassDef, ast.FunctionDef))}
    bound |= {each.arg for each in ast.walk(example) if isinstance(each, ast.arg)}
    used = {each.id for each in ast.walk(example) if _is_name(each, ast.Load)}
    assert used - bound - set(dir(builtins)) == set()


def _is_name(node: ast.AST, context: type[ast.expr_context]) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)
