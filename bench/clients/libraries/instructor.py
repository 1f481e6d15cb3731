"""Instructor, over the client of OpenAI."""

from typing import Any

import instructor
import openai
from bench.clients.libraries import asked
from bench.clients.libraries.asked import PERSON, Person, user
from instructor.core.exceptions import InstructorRetryException

PLACE = asked.place()
OPENAI = openai.OpenAI(base_url=PLACE.v1, api_key="any", timeout=120, max_retries=0)
GREEDY: dict[str, Any] = {"model": PLACE.model, "temperature": 0, "max_tokens": 60, "max_retries": 1}


def _client(mode: Any) -> Any:
    return instructor.from_openai(OPENAI, mode=mode)


def _person(mode: Any) -> None:
    asked.check_person(_client(mode).create(response_model=Person, messages=user(PERSON), **GREEDY))


@asked.feature("tools: named")
def _called() -> None:
    _person(instructor.Mode.TOOLS)


@asked.feature("structured output")
def _structured() -> None:
    _person(instructor.Mode.JSON_SCHEMA)


@asked.feature("streams")
def _streams() -> None:
    client = _client(instructor.Mode.JSON_SCHEMA)
    *_, last = client.create_partial(response_model=Person, messages=user(PERSON), **GREEDY)
    Person.model_validate(last.model_dump())


@asked.feature("errors")
def _errors() -> None:
    client, absent = _client(instructor.Mode.TOOLS), {**GREEDY, "model": "absent"}
    asked.refused(
        lambda: client.create(response_model=Person, messages=user("x"), **absent),
        InstructorRetryException,
        "served models",
    )


if __name__ == "__main__":
    asked.tell()
