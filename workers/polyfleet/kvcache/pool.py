"""BlockPool: owner of the KV cache's blocks. It knows who may write where, never what stands there."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Hands out block ids 0 … num_blocks-1 and counts their references.

    A block is in exactly one of three states:

    | state  | references | contents                                                         |
    | free   | 0          | worthless                                                        |
    | used   | 1 or more  | one sequence's (1 reference), or shared and full (kept)          |
    | cached | 0          | kept for reuse; the least recently used one is evicted when free |
    |        |            | blocks run out                                                   |

    Not thread-safe.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.evictions = 0  # so far
        self.on_evict: Callable[[int], None] = lambda block: None
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is the warmest
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._kept: set[int] = set()  # blocks that go to the cache, not to the free list, when nobody uses them

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can give: free or evictable."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> Iterable[int]:
        """Evictable blocks, the next to go first."""
        return self._cached.keys()

    @property
    def kept(self) -> frozenset[int]:
        """Blocks, used or cached, whose contents are kept for reuse."""
        return frozenset(self._kept)

    def references(self, block: int) -> int:
        """How many holders the block has."""
        return self._references[block]

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks with one reference each; None, and nothing taken, when there are not so many.

        Evicts cached blocks, least recently used first, once free ones are gone; `on_evict` hears of each.
        """
        if count > self.num_free:
            return None
        while len(self._free) < count:
            self._evict()
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Add a reference to a used or cached block, which must be kept: only full blocks are shared."""
        if block not in self._kept:
            raise ValueError(f"block {block} is private")
        self._cached.pop(block, None)
        self._references[block] += 1

    def keep(self, block: int) -> None:
        """Keep the contents of a used block: others may share it, and it becomes cached when nobody uses it."""
        if not self._references[block]:
            raise ValueError(f"block {block} is not in use")
        self._kept.add(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference from each block, the last one first.

        So of a chain of cached blocks the tail is always evicted before what it hangs on.
        """
        for block in reversed(blocks):
            if not self._references[block]:
                raise ValueError(f"block {block} is not in use")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._kept:
                self._cached[block] = None
            else:
                self._free.append(block)

    def check(self) -> None:
        """Raise AssertionError unless every block is in exactly one state and all counts agree."""
        used = {block for block, count in enumerate(self._references) if count > 0}
        free, cached = set(self._free), set(self._cached)
        assert min(self._references) >= 0, "a reference count is negative"
        assert len(free) == len(self._free), "a block is twice in the free list"
        assert len(used) + len(free) + len(cached) == self.num_blocks, "blocks are lost or in two states"
        assert used | free | cached == set(range(self.num_blocks)), "a block is in no state"
        assert cached <= self._kept <= used | cached, "a kept block is free, or a cached block is not kept"
        private = [block for block in used - self._kept if self._references[block] > 1]
        assert not private, f"blocks {private} are shared but not full"

    def _evict(self) -> None:
        block, _ = self._cached.popitem(last=False)
        self._kept.discard(block)
        self._free.append(block)
        self.evictions += 1
        self.on_evict(block)
