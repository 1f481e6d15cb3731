"""A model in two ranks under `polyfleet serve`: a rank that dies or hangs costs a stream seconds, and nothing else."""

import signal
from collections.abc import Iterator

import grpc
import psutil
import pytest
from tests.support.serve_process import ServeProcess, alive, wait_for
from tests.support.streams import Stream
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.backends.cpu import usable_cores

pytestmark = [pytest.mark.slow, pytest.mark.skipif(usable_cores() < 2, reason="ranks have a core each")]
PROMPT, TOKENS = [5, 9, 7, 3], 200


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("ranks")
    extra = byte_level_metadata()
    write_gguf(folder / "tiny.gguf", TinyShape(vocabulary=len(extra["tokenizer.ggml.tokens"])), extra=extra)
    (folder / "config.yaml").write_text(
        "gateway: {limits: {queue_timeout: 200}}"
    )  # a busy machine starts a group slowly
    flags = ("--config", str(folder / "config.yaml"), "--model", str(folder / "tiny.gguf"), "--tensor-parallel", "2")
    serve = ServeProcess(folder / "state", *flags, "--executor", "eager", "--dtype", "float32").start()
    try:
        yield serve.wait_ready()
    finally:
        serve.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stream_goes_on_when_the_group_is_back(group: ServeProcess, number: signal.Signals) -> None:
    with grpc.insecure_channel(group.grpc) as channel:
        whole = Stream(channel, PROMPT, TOKENS).wait()
        assert len(whole.token_ids) == TOKENS, whole.error
        (worker,) = group.ready_workers()
        (rank,) = group.find(r"polyfleet\.executors\.rank")
        cut = Stream(channel, PROMPT, TOKENS).wait_started()
        rank.send_signal(number)
        assert cut.wait().error is None
        assert cut.token_ids == whole.token_ids
        wait_for(lambda: not alive(rank), "the end of the rank")
        (returned,) = wait_for(group.ready_workers, "the group's return")
        assert psutil.Process(returned["pid"]).pid != worker["pid"]
