"""A worker tells each gateway which prompts the others began: a real worker process, over gRPC."""

from pathlib import Path

from tests.support.running_worker import RunningWorker
from tests.support.session_client import SessionClient

from polyfleet.v1 import worker_pb2 as pb

GRAINS = [11, 2**64 - 1]


async def news(session: SessionClient) -> tuple[bool, list[list[int]]]:
    """The next that a session hears."""
    while not (event := await session.event()).HasField("prefix_news"):
        pass
    return event.prefix_news.whole, [list(chain.grains) for chain in event.prefix_news.chains]


async def test_a_prompt_that_one_gateway_began_is_told_to_the_others(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:canary=0") as worker:
        async with worker.session("g-1") as one, worker.session("g-2") as other:
            assert await news(one) == await news(other) == (True, [])
            start = pb.StartSequence(sequence_id="a", prompt_ids=[1] * 8, max_tokens=1)
            await one.call.write(pb.SessionCommand(start=start, grains=GRAINS))
            assert await news(other) == (False, [GRAINS])
            await other.call.write(pb.SessionCommand(resync_prefixes=pb.ResyncPrefixes()))
            assert await news(other) == (True, [GRAINS])
        async with worker.session("g-3") as late:
            assert await news(late) == (True, [GRAINS])
