"""What a request's answer is made of: the inbox of a choice, its text, its deltas."""

import asyncio
from collections.abc import Callable

import pytest
from tests.support.fake_worker import fake_tokens
from tests.support.gateway_rig import VOCABULARY
from tests.support.text_assets import assets_document

from polyfleet.gateway.api import Call
from polyfleet.gateway.errors import (
    DataLoss,
    Unavailable,
)
from polyfleet.gateway.ledger import Ledger
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.accounts import Accounts
from polyfleet.gateway.request.inbox import Inbox, Parcel
from polyfleet.gateway.request.output import ChoiceOutput, RequestOutput
from polyfleet.process.within import Within
from polyfleet.text.answer.channels import ChannelParser
from polyfleet.text.answer.parser import REASONING_TAGS, AnswerParser
from polyfleet.text.model_text import ModelText
from polyfleet.text.stop import StopStrings
from polyfleet.wire.answers import Delta, FinishReason, SampledToken, Usage
from polyfleet.wire.requests import GenerateRequest, SequenceRequest

TEXT = ModelText(assets_document())
IDS = fake_tokens([1], 40, 0, VOCABULARY)


def drawn(*token_ids: int) -> list[SampledToken]:
    return [SampledToken(token_id) for token_id in token_ids]


def output_of(stop: str = "", choice: int = 0) -> ChoiceOutput:
    return ChoiceOutput(SequenceRequest("", (), choice=choice), TEXT, StopStrings([stop]) if stop else None)


async def test_news_of_a_choice_are_merged_until_taken() -> None:
    inbox = Inbox()
    for choice, token in ((1, 10), (0, 20), (1, 11)):
        inbox.parcel(choice).tokens += drawn(token)
    inbox.num_tokens = 3
    assert [(parcel.choice, parcel.tokens) for parcel in await inbox.take()] == [(1, drawn(10, 11)), (0, drawn(20))]
    assert inbox.num_tokens == 0
    with pytest.raises(asyncio.TimeoutError), Within(0.01):
        await inbox.take()


async def test_an_error_comes_behind_the_news_and_the_first_one_counts() -> None:
    inbox = Inbox()
    inbox.parcel(0).tokens += drawn(1)
    inbox.fail(DataLoss("first"))
    inbox.fail(Unavailable("second"))
    assert len(await inbox.take()) == 1
    for _ in range(2):
        with pytest.raises(DataLoss, match="first"):
            await inbox.take()


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize(
    ("stop", "shown", "num_ids"),
    [
        ("<|im_end|>", "the fox", 3),
        ("<|im_end|>\n", "the fox", 4),
        ("fox<|im_end|>", "the ", 3),
        ("nd|>\n<|im_start|>t", "the fox", 6),
        ("<|im_start|>", "the fox\n", 5),
        ("<|im_end|>x", "the fox\nthe", 6),
        ("fox\n", "the fox\nthe", 6),
    ],
)
def test_stop_strings_of_special_tokens(stop: str, shown: str, num_ids: int, size: int) -> None:
    start, end = 1, 2
    ids = [*TEXT.encode("the"), *TEXT.encode(" fox"), end, *TEXT.encode("\n"), start, *TEXT.encode("the")]
    output, deltas = output_of(stop), list[Delta]()
    for at in range(0, len(ids), size):
        last = FinishReason.LENGTH if at + size >= len(ids) else None
        deltas.append(output.take(Parcel(0, tokens=drawn(*ids[at : at + size]), finish_reason=last)))
        if deltas[-1].finish_reason:
            break
    reason = FinishReason.STOP if stop in "the fox<|im_end|>\n<|im_start|>the" else FinishReason.LENGTH
    assert "".join(delta.text for delta in deltas) == shown
    assert [i for delta in deltas for i in delta.token_ids] == ids[:num_ids]
    assert deltas[-1].finish_reason is reason


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_output_does_not_depend_on_how_tokens_are_parcelled(size: int) -> None:
    whole = TEXT.decode(IDS)
    stop = whole[15:18]
    output = output_of(stop)
    deltas: list[Delta] = []
    for start in range(0, len(IDS), size):
        deltas.append(output.take(Parcel(0, tokens=drawn(*IDS[start : start + size]))))
        if deltas[-1].finish_reason:
            break
    ids = [i for delta in deltas for i in delta.token_ids]
    assert "".join(delta.text for delta in deltas) == whole[: whole.index(stop)]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert [delta.stop_string for delta in deltas if delta.stop_string] == [stop]
    assert ids == IDS[: len(ids)]
    assert stop in TEXT.decode(ids)
    assert stop not in TEXT.decode(ids[:-1])


THINK, END = "<think>\nHm, the fox.\n", "</think>\nThe dog."
MESSAGES = "<|channel|>analysis<|message|>the fox<|end|><|start|>assistant<|channel|>final<|message|>The dog.<|return|>"


@pytest.mark.parametrize("size", [1, 3, 200])
@pytest.mark.parametrize(
    ("answer", "parser", "thoughts", "begins", "ends"),
    [
        (THINK + END, lambda: AnswerParser(None, (), REASONING_TAGS[0]), "Hm, the fox.", "<think>", "</think>"),
        ("Hm.\n" + END, lambda: AnswerParser(None, (), REASONING_TAGS[0], thinking=True), "Hm.", "", "</think>"),
        (THINK, lambda: AnswerParser(None, (), REASONING_TAGS[0]), "Hm, the fox.\n", "<think>", "never"),
        ("The dog.", lambda: AnswerParser(None, (), REASONING_TAGS[0]), "", "never", "never"),
        (MESSAGES, lambda: ChannelParser(()), "the fox", "<|message|>", "<|end|>"),
    ],
)
def test_tokens_of_thoughts_are_counted(
    answer: str, parser: Callable[[], AnswerParser], thoughts: str, begins: str, ends: str, size: int
) -> None:
    ids = TEXT.encode(answer)
    texts = [TEXT.decode(ids[: count + 1]) for count in range(len(ids))]
    thought = sum(begins in each and ends not in each for each in texts)
    output = ChoiceOutput(SequenceRequest("", ()), TEXT, None, parser())
    parcels = [Parcel(0, tokens=drawn(*ids[at : at + size])) for at in range(0, len(ids), size)]
    deltas = [*map(output.take, parcels), output.take(Parcel(0, finish_reason=FinishReason.LENGTH))]
    assert "".join(delta.reasoning for delta in deltas) == thoughts
    assert output.num_thought == thought
    assert bool(thought) == bool(thoughts)


def test_what_was_held_back_comes_with_the_end() -> None:
    whole = TEXT.decode(IDS)
    output = output_of(whole[-3:] + "never")
    first = output.take(Parcel(0, tokens=drawn(*IDS)))
    last = output.take(Parcel(0, finish_reason=FinishReason.LENGTH))
    assert (first.text, last.text) == (whole[:-3], whole[-3:])
    assert last.finish_reason is FinishReason.LENGTH


def test_the_first_delta_names_the_request_and_the_last_has_usage() -> None:
    with Accounts(Ledger(), Metrics(), 10).open("req-1", Call("Generate")) as record:
        output = RequestOutput([output_of(choice=i) for i in range(2)], 5, record)
        deltas = [
            output.take(Parcel(0, "w-1", drawn(1), cached_tokens=4)),
            output.take(Parcel(1, "w-2", drawn(2, 3), finish_reason=FinishReason.LENGTH)),
            output.take(Parcel(1, "w-2", drawn(9))),
            output.take(Parcel(0, tokens=drawn(4), finish_reason=FinishReason.STOP)),
        ]
    assert [delta.request_id if delta else None for delta in deltas] == ["req-1", "", None, ""]
    assert [delta.worker_id if delta else None for delta in deltas] == ["w-1", "w-2", None, ""]
    assert [delta.usage if delta else None for delta in deltas] == [None, None, None, Usage(5, 4, 4)]
    assert output.finished
    assert record.worker_id == "w-1"


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize(
    ("stop", "min_tokens", "shown", "num_ids"),
    [
        ("fox", 0, "the ", 2),
        ("fox", 1, "the ", 2),
        ("fox", 2, "the foxthe ", 4),
        ("fox", 3, "the foxthe ", 4),
        ("fox", 7, "the fox" * 3 + "the ", 8),
        ("fox", 8, "the fox" * 4, 8),
        ("foxthe", 2, "the ", 3),  # it begins before, and is completed behind
        ("foxthe", 3, "the foxthe ", 5),
        ("xt", 4, "the foxthe fo", 5),
    ],
)
def test_stop_strings_of_the_first_tokens_do_not_count(
    stop: str, min_tokens: int, shown: str, num_ids: int, size: int
) -> None:
    ids = [*TEXT.encode("the"), *TEXT.encode(" fox")] * 4
    request = GenerateRequest(stop=(stop,), min_tokens=min_tokens)
    output = ChoiceOutput(SequenceRequest("", (), min_tokens=min_tokens), TEXT, StopStrings.of(request))
    deltas: list[Delta] = []
    for at in range(0, len(ids), size):
        last = FinishReason.LENGTH if at + size >= len(ids) else None
        deltas.append(output.take(Parcel(0, tokens=drawn(*ids[at : at + size]), finish_reason=last)))
        if deltas[-1].finish_reason:
            break
    assert "".join(delta.text for delta in deltas) == shown
    assert [i for delta in deltas for i in delta.token_ids] == ids[:num_ids]
    stopped = num_ids < len(ids) or not shown.endswith(stop)
    assert deltas[-1].finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
