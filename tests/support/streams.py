"""Generate calls in threads of their own, watched from the test as they go."""

import threading
from typing import Any

import grpc
from tests.support.serve_process import wait_for

from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1.inference_pb2_grpc import InferenceStub


class Stream:
    """One running Generate call: greedy over token ids, past end tokens. Never raises: see `error`."""

    def __init__(self, channel: grpc.Channel, prompt: list[int], max_tokens: int) -> None:
        request = pb.GenerateRequest(
            token_ids=prompt, max_tokens=max_tokens, ignore_eos=True, sampling=pb.SamplingParams(temperature=0)
        )
        self.messages: list[pb.GenerateResponse] = []
        self.error: grpc.RpcError | None = None
        self._call: Any = InferenceStub(channel).Generate(request, timeout=300)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self.messages.append(message)
        except grpc.RpcError as error:
            self.error = error

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far."""
        return [token for message in list(self.messages) for token in message.token_ids]

    @property
    def worker_ids(self) -> list[str]:
        """The workers that computed it, in order."""
        return [message.worker_id for message in list(self.messages) if message.worker_id]

    def wait_started(self) -> "Stream":
        """Until its first token is there; fails the test when it ends before."""
        wait_for(lambda: self.token_ids or self.ended, "a first token")
        assert self.token_ids, self.error
        return self

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return not self._thread.is_alive()

    def wait(self) -> "Stream":
        """Until it has ended."""
        self._thread.join(300)
        assert self.ended
        return self

    def cancel(self) -> None:
        """End it now."""
        self._call.cancel()
        self._thread.join(60)
