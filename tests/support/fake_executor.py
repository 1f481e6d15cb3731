"""An executor without a model, for tests: its tokens are a function of what stands in the KV blocks.

Every token it is given is written through the block table into a store of its own, and everything it draws from is
read back through the block table. So a block that is shared wrongly, freed too early or not computed shows as a wrong
token, or at once as an AssertionError.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from polyfleet.engine.batch import PoolingKind, SequenceSlice, SliceResult, StepBatch
from polyfleet.engine.request import SequenceRequest
from polyfleet.sampling.draw import SampledToken

VOCABULARY = 97
HIDDEN = 3


class FakeExecutor:
    """Deterministic; `fail_when` makes it raise, `error_when` fails single slices."""

    def __init__(self, num_blocks: int = 64, block_size: int = 4) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.batches: list[StepBatch] = []
        self.failure: Exception | None = None  # raised by the next step, once
        self.slice_error = ""  # given to the first slice of the next step, once
        self._store: dict[tuple[int, int], int] = {}  # (block, offset) -> token id

    def step(self, batch: StepBatch) -> tuple[SliceResult, ...]:
        """Write all tokens, then draw."""
        self.batches.append(batch)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        for each in batch.slices:
            for position, token_id in enumerate(each.token_ids, each.start):
                self._store[self._place(each, position)] = token_id
        results = [self._result(each) for each in batch.slices]
        if self.slice_error:
            results[0], self.slice_error = SliceResult(error=self.slice_error), ""
        return tuple(results)

    def implementations(self) -> Mapping[str, str]:
        """No op is computed."""
        return {"step": "fake"}

    def _result(self, each: SequenceSlice) -> SliceResult:
        end = each.start + len(each.token_ids)
        if each.pooling is not None:
            return SliceResult(pooled=pooled(each.pooling, each.token_ids))
        if each.draw is None:
            return SliceResult()
        content = [self._store[self._place(each, position)] for position in range(end)]
        draw = each.draw
        assert draw.position == len(content), "the draw's position is not that behind the blocks' tokens"
        return SliceResult(SampledToken(next_token(content, draw.params.seed, draw.choice)))

    def _place(self, each: SequenceSlice, position: int) -> tuple[int, int]:
        return each.block_table[position // self.block_size], position % self.block_size


def next_token(token_ids: Sequence[int], seed: int = 0, choice: int = 0) -> int:
    """The token behind `token_ids`."""
    digest = blake2b(repr((list(token_ids), seed, choice)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def pooled(kind: PoolingKind, token_ids: Sequence[int]) -> tuple[float, ...]:
    """What a slice pools to: powers of the ids, summed or of the last one."""
    rows = [tuple(float(each**power) for power in range(1, HIDDEN + 1)) for each in token_ids]
    return rows[-1] if kind is PoolingKind.LAST else tuple(map(sum, zip(*rows, strict=True)))


def expected_tokens(
    request: SequenceRequest, context_length: int, end_token_ids: frozenset[int] = frozenset()
) -> tuple[list[int], str]:
    """The tokens that follow `generated_ids` and the finish reason, computed one by one without an engine."""
    generated = list(request.generated_ids)
    while True:
        token_id = next_token([*request.prompt_ids, *generated], request.params.seed, request.choice)
        if token_id in request.stop_token_ids or (not request.ignore_eos and token_id in end_token_ids):
            return generated[len(request.generated_ids) :], "stop"
        generated.append(token_id)
        if len(generated) == request.max_tokens or len(request.prompt_ids) + len(generated) == context_length:
            return generated[len(request.generated_ids) :], "length"
