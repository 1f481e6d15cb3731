"""Composer: who takes part in the next step, and with how many tokens."""

import time
from collections.abc import Callable
from typing import Any

from polyfleet.engine.batching.budget import LEAST_ROWS, StepBudget
from polyfleet.engine.batching.cohort import Cohort
from polyfleet.engine.batching.holdings import Holdings
from polyfleet.engine.batching.ledger import Ledger
from polyfleet.engine.speculation.speculation import Speculator
from polyfleet.engine.step.rows import Share
from polyfleet.engine.step.sequence import Sequence, SequenceState

UNREADY_SECONDS = 0.002  # between two looks for a sequence that may start
MOST_NEWCOMERS = 64  # waiting sequences that are looked at for a step


class Composer:
    """One token for every sequence that decodes, drafts behind some, then chunks of prompts up to the budget.

    Of the rows for prompts half go by rank (priority, then arrival), the rest to the prompts with the fewest tokens
    left: a long prompt always goes on, and a short one behind it needs not wait for its end.

    While all that runs decodes and nothing can start, steps are composed of the same sequences. When each of them will
    have filled its blocks, or have all its tokens, is known ahead: only then it is looked at.
    """

    def __init__(
        self,
        ledger: Ledger,
        holdings: Holdings,
        budget: StepBudget,
        speculator: Speculator | None = None,
        *,
        started: Callable[[Sequence], None],
        preempt: Callable[[Sequence], None],
        whole: bool = False,
    ) -> None:
        """`started` hears of every sequence that leaves the queue; `preempt` is to put one back. `whole`: prompts are
        not cut."""
        self._ledger = ledger
        self._holdings = holdings
        self._budget = budget
        self._speculator = speculator
        self._started = started
        self._preempt = preempt
        self._whole = whole
        self.waits = False  # whether a sequence of the last composition waits for a block
        self._prompts_left: list[Sequence] = []  # those that ran at the last composition and did not decode
        self._prompts_turn = False
        self._decodes = Cohort(())  # of the last composition
        self._steady = False  # whether these may go on as long as it does not move
        self._due: dict[int, list[Sequence]] = {}  # who of them is to be looked at in which turn
        self._turn = 0

    def compose(self, *, ahead: bool) -> tuple[Cohort, list[Share]]:
        """The sequences that decode in the next step, and the shares of prompts and drafts, those of one token first.

        Where the former are all of the last composition's, one token further, they are the same Cohort.

        `ahead`: steps are under way; then nothing is preempted, and a sequence that finds no block waits. Else the
        running sequence last in rank is preempted until blocks suffice: the first never is.
        """
        if ahead and self._speculator is not None and self._await_drafts(self._speculator):
            return Cohort(()), []
        ledger, decodes = self._ledger, self._decodes
        unmoved = ledger.num_moves == decodes.num_moves
        same = self._steady and unmoved and not (ledger.waiting and self._may_start())
        if same and len(decodes) <= self._budget.most:
            self._turn += 1
            if self._turn not in self._due or self._go_on():
                return decodes, []
        found, shares = self._compose(ahead)
        if ledger.num_moves != decodes.num_moves or tuple(found) != decodes:
            self._decodes = Cohort(found, ledger.num_moves)
        self._steady = not shares and len(found) == len(ledger.running) and self._speculator is None
        self._due.clear()
        if self._steady:
            for each in found:
                self._plan_a_look(each)
        return self._decodes, shares

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens of all sequences, running and waiting, that must be computed before each of them decodes."""
        total = self._ledger.waiting_tokens
        for each in self._prompts_left:
            if each.state is SequenceState.RUNNING and each.num_uncomputed > 1:
                total += each.num_uncomputed
        return total

    def rest(self) -> None:
        """Nothing can be computed: where sequences wait, it is for their grammars."""
        if self._ledger.waiting:
            time.sleep(UNREADY_SECONDS)

    def _may_start(self) -> bool:
        """Whether some sequence may leave the queue."""
        return bool(self._ledger.waiting) and self._holdings.has_slot

    def _go_on(self) -> bool:
        """Find blocks for whom needs some now; False where one finds none, or has all its tokens under way."""
        for each in self._due.pop(self._turn):
            if each.num_tokens >= each.longest or not self._holdings.grow(each):
                return False
            self._plan_a_look(each)
        return True

    def _plan_a_look(self, sequence: Sequence) -> None:
        """When its blocks are full, or its tokens are all under way."""
        most = min(sequence.room, sequence.longest - 1)
        turn = self._turn + 1 + max(0, most - sequence.num_tokens)
        self._due.setdefault(turn, []).append(sequence)

    def _compose(self, ahead: bool) -> tuple[list[Sequence], list[Share]]:
        self.waits = False
        decodes: list[Sequence] = []
        prompts: list[Sequence] = []
        running = self._ledger.running
        num_running = len(running)
        for each in running[:]:
            if each.place is None:  # preempted just now
                continue
            num_tokens = each.num_tokens
            left = num_tokens - each.num_computed
            if left == 0 or (num_tokens >= each.longest and each.num_drawing):
                continue  # all it takes is under way
            if num_tokens > each.room and not self._grow(each, ahead):
                continue
            if left == 1 and num_tokens > each.num_prompt and each.pooling is None:
                decodes.append(each)
            else:
                prompts.append(each)
        preempted = len(running) < num_running
        if preempted:
            decodes = [each for each in decodes if each.place is not None]
            prompts = [each for each in prompts if each.place is not None]
        shares: list[Share] = []
        starting = bool(prompts) or self._may_start()
        if self._speculator is not None and decodes:
            decodes, shares = self._drafted(self._speculator, decodes, LEAST_ROWS if starting else 0)
        rows = self._rows_for_prompts(len(decodes) + sum(size for _, size in shares)) if starting else 0
        self._prompts_left = prompts
        if rows:
            admitting = not (preempted or self.waits)
            shares += self._whole_prompts(rows) if self._whole else self._prompts(prompts, rows, admitting=admitting)
        room = self._budget.most - sum(size for _, size in shares)
        if len(decodes) > room:  # they take turns
            decodes = sorted(decodes, key=lambda each: each.last_step)[:room]
        return decodes, sorted(shares, key=lambda share: share[1] > 1)

    def _await_drafts(self, speculator: Speculator) -> bool:
        """Whether draws under way must be known first: of drafts, or since drafts behind them are likely to pay.

        All wait for those of one, lest sequences fall out of step.
        """
        number = len(self._ledger.running)
        under_way = (each for each in self._ledger.running if each.num_drawing)
        return any(each.num_drawing > 1 or speculator.waits(each, number) for each in under_way)

    def _drafted(
        self, speculator: Speculator, decodes: list[Sequence], kept: int
    ) -> tuple[list[Sequence], list[Share]]:
        """The sequences without drafts, and the shares of those with some; `kept` rows are left to prompts."""
        room = self._budget.most - len(decodes) - kept
        drafted = speculator.draft(decodes, room, self._holdings.grow)
        if not drafted:
            return decodes, []
        shares = [(each, 1 + len(each.drafts)) for each in drafted]
        return [each for each in decodes if not each.drafts], shares

    def _rows_for_prompts(self, num_decodes: int) -> int:
        """Half a step's rows in every second step where decodes alone would fill what memory allows."""
        rows = self._budget.for_prompts(num_decodes)
        if not rows:
            self._prompts_turn = not self._prompts_turn
            rows = max(1, self._budget.most // 2) if self._prompts_turn else 0
        return rows

    def _grow(self, sequence: Sequence, ahead: bool) -> bool:
        """Find blocks for a running sequence; False when it waits, or was preempted itself."""
        while not self._holdings.grow(sequence):
            if ahead:
                self.waits = True
                return False
            self._preempt(self._ledger.running[-1])
            if sequence.state is not SequenceState.RUNNING:
                return False
        return True

    def _prompts(self, prompts: list[Sequence], rows: int, *, admitting: bool) -> list[Share]:
        """Share `rows` out among prompts under way and newcomers; these start when they get some."""
        shares: dict[Sequence, int] = {}
        newcomers = [each for each in self._ledger.waiting[:MOST_NEWCOMERS] if each.ready]
        candidates = sorted((*prompts, *newcomers), key=lambda each: each.rank)
        spare = max(0, self._holdings.num_free_slots - len(newcomers))  # draws beyond one for each sequence

        def give(rows: int, key: Callable[[Sequence], Any]) -> int:
            nonlocal admitting, spare
            for each in sorted(candidates, key=key):
                if not rows:
                    break
                if each.state is SequenceState.WAITING:
                    admitting = admitting and self._start(each)
                    if not admitting:
                        continue
                size = min(rows, each.num_uncomputed - shares.get(each, 0))
                if each.scoring and each.num_unscored:
                    own = each not in shares
                    size = min(size, each.num_unscored - shares.get(each, 0), spare + own)
                    spare -= max(0, size - own)
                if size:
                    shares[each] = shares.get(each, 0) + size
                    rows -= size
            return rows

        second = rows // 2
        left = give(rows - second, lambda each: each.rank)
        give(left + second, lambda each: (-each.request.priority, each.num_uncomputed - shares.get(each, 0)))
        return list(shares.items())

    def _whole_prompts(self, rows: int) -> list[Share]:
        """Newcomers by rank as far as all their tokens fit; the first starts alone where it is longer than `rows`."""
        shares: list[Share] = []
        for each in sorted(self._ledger.waiting[:MOST_NEWCOMERS], key=lambda each: each.rank):
            if (shares and each.num_tokens > rows) or not self._start(each):
                break
            shares.append((each, each.num_tokens))
            rows -= each.num_tokens
        return shares

    def _start(self, sequence: Sequence) -> bool:
        """Start a waiting sequence if there are blocks for its tokens and one for each running one that grows."""
        reserved = sum([each.longest > each.room for each in self._ledger.running])
        if not self._holdings.start(sequence, reserved):
            return False
        self._ledger.move(sequence, SequenceState.RUNNING)
        self._started(sequence)
        self._prompts_left.append(sequence)
        return True
