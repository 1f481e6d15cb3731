"""What every library asks for, and how it tells what came of it. Imports none of this project.

python -m bench.clients.libraries.openai http://127.0.0.1:8000 MODEL MODEL_THAT_SEES
{"feature": "chat", "problem": ""}
"""

import base64
import json
import struct
import sys
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field

CAPITAL = "What is the capital of France? Answer in one word."
WEATHER = "How is the weather in Paris?"
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("weather", "time")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": f"The {name} in a city.", "parameters": CITY}}
    for name in NAMES
]
RESULT = "3 degrees, rain"
PERSON = "Describe a person."
AskT = TypeVar("AskT", bound=Callable[..., object])
_FEATURES: dict[str, Callable[..., object]] = {}


class Person(BaseModel):
    """A structured answer."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


@dataclass(frozen=True)
class Place:
    """What is asked: a gateway, a model, and one that sees."""

    url: str
    model: str
    seeing: str

    @property
    def v1(self) -> str:
        """Where OpenAI's clients look."""
        return f"{self.url}/v1"


def place() -> Place:
    """The command line's."""
    return Place(*sys.argv[1:4])


def picture() -> str:
    """A PNG of 16 x 16 pixels, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(value for x in range(16) for value in (x * 16, y * 16, 99)) for y in range(16))
    head = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def shown() -> list[dict[str, Any]]:
    """A chat of OpenAI's that shows the picture."""
    url = {"url": f"data:image/png;base64,{picture()}"}
    return [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": url}, {"type": "text", "text": "What is it?"}],
        }
    ]


def user(text: str) -> list[dict[str, Any]]:
    """A chat of one turn."""
    return [{"role": "user", "content": text}]


def check_call(name: str, arguments: Any, wanted: str = "") -> None:
    """A call is of a tool that was offered, and its arguments keep to the schema."""
    assert name in ((wanted,) if wanted else NAMES), name
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert [*given] == ["city"], given
    assert isinstance(given["city"], str), given


def feature(name: str) -> Callable[[AskT], AskT]:
    """Marks what asks for this feature: it raises where the library does not have it."""

    def marked(ask: AskT) -> AskT:
        _FEATURES[name] = ask
        return ask

    return marked


def choices(called: Callable[..., list[Any]]) -> None:
    """Marks the features of `tool_choice` where it is written, and calls are read, as in OpenAI's API.

    `called` asks for the weather with more options and gives the calls that came.
    """

    @feature("tools: named")
    def named() -> None:
        (call,) = called(tool_choice={"type": "function", "function": {"name": "time"}})
        assert call.function.name == "time"

    @feature("tools: required")
    def required() -> None:
        assert called(tool_choice="required")

    @feature("tools: none")
    def none() -> None:
        assert called(tool_choice="none") == []

    @feature("tools: one call")
    def one_call() -> None:
        assert len(called(tool_choice="required", parallel_tool_calls=False)) == 1


def check_person(found: Any) -> None:
    """A structured answer is one."""
    assert isinstance(found, Person), found


def refused(call: Callable[[], Any], kind: type[BaseException], *told: str) -> None:
    """The call ends with the library's own exception, whose text has all that is told."""
    found: BaseException | None = None
    try:
        call()
    except kind as error:
        found = error
    assert found is not None, f"no {kind.__name__}"
    assert all(each in str(found) for each in told), found


def tell() -> None:
    """Ask for each feature that is marked; print one line of JSON for each."""
    for name, ask in _FEATURES.items():
        try:
            ask()
        except Exception as error:  # whatever a library raises is the finding
            frame = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__} at {frame.name}:{frame.lineno}: {error}"[:400]
        else:
            problem = ""
        print(json.dumps({"feature": name, "problem": problem}), flush=True)
