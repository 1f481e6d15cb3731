"""How many rows a step may have, so that it stays under a stated time and within the device's memory."""

LEAST_ROWS = 16  # for prompts, whatever a step takes, so that there is always progress
ROW_TRIES = 3  # of a step of one row that finds no memory
PATIENCE_STEPS = 64  # good steps before a step that is twice as large as memory allowed is tried again, at first
MOST_PATIENCE_STEPS = 2**14  # and where larger steps were tried again in vain
GROWTH, FIRST_GROWTH = 1.5, 4  # of rows from step to step at most, and until it is known how many take the time


class StepBudget:
    """Adapts the rows of a step to what steps took. Without a time to stay under, only memory lowers it.

    With one, the first step has the least rows: how long a row takes is not known before.
    """

    def __init__(self, step_tokens: int, seconds: float = 0.0) -> None:
        """At most `step_tokens` rows, and about `seconds` a step; 0: as long as it takes."""
        self.most = step_tokens  # that fit the memory, as far as is known
        self.rows = min(step_tokens, LEAST_ROWS) if seconds else step_tokens  # that take the time
        self._growth: float = FIRST_GROWTH
        self._step_tokens = step_tokens
        self._seconds = seconds
        self._good_steps = 0
        self._patience = PATIENCE_STEPS
        self._probing = False  # whether `most` was raised since memory was short
        self._failed_rows = 0  # one after the other

    def for_prompts(self, num_decodes: int) -> int:
        """Rows for prompts beside so many decodes."""
        room = self.most - num_decodes
        return max(0, min(room, max(self.rows - num_decodes, LEAST_ROWS)))

    def observe(self, num_decodes: int, num_prompt_rows: int, seconds: float) -> None:
        """A step came to a good end after so long."""
        self._failed_rows = 0
        if self._probing or self.most < self._step_tokens:
            self._good_steps += 1
            if self._good_steps >= self._patience:
                self._raise_most()
        if not (self._seconds and num_prompt_rows and seconds > 0):
            return
        rows = num_decodes + num_prompt_rows
        fitting = rows * self._seconds / seconds
        if fitting < rows:
            self.rows = max(LEAST_ROWS, int(max(fitting, rows / 4)))
        elif rows >= self.rows:  # it was as large as it might be
            self.rows = min(self._step_tokens, int(min(fitting, rows * self._growth)) + 1)
            self._growth = GROWTH if fitting < rows * self._growth else self._growth

    def too_large(self, rows: int) -> bool:
        """The device had no memory for a step of so many rows: none as large is tried for a while.

        False when trying again is in vain: single rows have failed one after the other.
        """
        self.most = max(1, rows // 2)
        self._good_steps = 0
        if self._probing:  # in vain; several failures in a row are one lack of memory
            self._patience = min(2 * self._patience, MOST_PATIENCE_STEPS)
            self._probing = False
        self._failed_rows = self._failed_rows + 1 if rows == 1 else 0
        return self._failed_rows < ROW_TRIES

    def _raise_most(self) -> None:
        """Patience is over: try larger steps, and be less patient where the last ones proved good."""
        self._good_steps = 0
        if self._probing:
            self._patience = max(PATIENCE_STEPS, self._patience // 2)
        self._probing = self.most < self._step_tokens
        self.most = min(self._step_tokens, 2 * self.most)
