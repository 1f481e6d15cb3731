"""Composer: who takes part in the next step, and with how many tokens."""

from collections.abc import Callable
from typing import Any

from polyfleet.engine.budget import StepBudget
from polyfleet.engine.holdings import Holdings
from polyfleet.engine.ledger import Ledger
from polyfleet.engine.plan import Share
from polyfleet.engine.sequence import Sequence, SequenceState

MOST_NEWCOMERS = 64  # waiting sequences that are looked at for a step


class Composer:
    """One token for every sequence that decodes, then chunks of prompts up to the budget.

    Of the rows for prompts half go by rank (priority, then arrival), the rest to the prompts with the fewest tokens
    left: a long prompt always goes on, and a short one behind it needs not wait for its end.
    """

    def __init__(self, ledger: Ledger, holdings: Holdings, budget: StepBudget) -> None:
        self._ledger = ledger
        self._holdings = holdings
        self._budget = budget
        self.waits = False  # whether a sequence of the last composition waits for a block
        self._prompts_turn = False

    def compose(self, *, ahead: bool, preempt: Callable[[Sequence], None]) -> tuple[list[Sequence], list[Share]]:
        """The sequences that decode in the next step, and the shares of prompts, those of one token first.

        `ahead`: steps are under way; then nothing is preempted, and a sequence that finds no block waits. Else
        `preempt` is called for the running sequence last in rank until blocks suffice: the first never is.
        """
        self.waits = False
        decodes: list[Sequence] = []
        prompts: list[Sequence] = []
        block_size, running = self._holdings.block_size, self._ledger.running
        num_running = len(running)
        for each in running[:]:
            if each.place is None:  # preempted just now
                continue
            left = each.num_tokens - each.num_computed
            if left == 0 or (each.num_drawing and each.num_tokens >= each.longest):
                continue  # all it takes is under way
            if each.num_tokens > len(each.blocks) * block_size and not self._grow(each, ahead, preempt):
                continue
            if left == 1 and (each.num_drawing or each.generated_ids) and each.pooling is None:
                decodes.append(each)
            else:
                prompts.append(each)
        preempted = len(running) < num_running
        if preempted:
            decodes = [each for each in decodes if each.place is not None]
            prompts = [each for each in prompts if each.place is not None]
        shares: list[Share] = []
        rows = self._rows_for_prompts(len(decodes)) if prompts or self._ledger.waiting else 0
        if rows:
            shares = self._prompts(prompts, rows, admitting=not (preempted or self.waits))
        room = self._budget.most - sum(size for _, size in shares)
        if len(decodes) > room:  # they take turns
            decodes = sorted(decodes, key=lambda each: each.last_step)[:room]
        return decodes, sorted(shares, key=lambda share: share[1] > 1)

    def _rows_for_prompts(self, num_decodes: int) -> int:
        """Half a step's rows in every second step where decodes alone would fill what memory allows."""
        rows = self._budget.for_prompts(num_decodes)
        if not rows:
            self._prompts_turn = not self._prompts_turn
            rows = max(1, self._budget.most // 2) if self._prompts_turn else 0
        return rows

    def _grow(self, sequence: Sequence, ahead: bool, preempt: Callable[[Sequence], None]) -> bool:
        """Find blocks for a running sequence; False when it waits, or was preempted itself."""
        while not self._holdings.grow(sequence):
            if ahead:
                self.waits = True
                return False
            preempt(self._ledger.running[-1])
            if sequence.state is not SequenceState.RUNNING:
                return False
        return True

    def _prompts(self, prompts: list[Sequence], rows: int, *, admitting: bool) -> list[Share]:
        """Share `rows` out among prompts under way and newcomers; these start when they get some."""
        shares: dict[Sequence, int] = {}
        candidates = sorted((*prompts, *self._ledger.waiting[:MOST_NEWCOMERS]), key=lambda each: each.rank)

        def give(rows: int, key: Callable[[Sequence], Any]) -> int:
            nonlocal admitting
            for each in sorted(candidates, key=key):
                if not rows:
                    break
                if each.state is SequenceState.WAITING:
                    admitting = admitting and self._start(each)
                    if not admitting:
                        continue
                size = min(rows, each.num_uncomputed - shares.get(each, 0))
                if size:
                    shares[each] = shares.get(each, 0) + size
                    rows -= size
            return rows

        second = rows // 2
        left = give(rows - second, lambda each: each.rank)
        give(left + second, lambda each: (-each.request.priority, each.num_uncomputed - shares.get(each, 0)))
        return list(shares.items())

    def _start(self, sequence: Sequence) -> bool:
        """Start a waiting sequence if there are blocks for its tokens and one for each running one that grows."""
        reserved = sum(map(self._holdings.grows, self._ledger.running))
        if not self._holdings.start(sequence, reserved):
            return False
        self._ledger.move(sequence, SequenceState.RUNNING)
        return True
