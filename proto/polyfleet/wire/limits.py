"""Limits of the public API and the one error that names a field and its limit."""

import math
import re

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_SEQUENCE_STOP_TOKEN_IDS = MAX_STOP_TOKEN_IDS + 1  # a chat template's end of turn joins the client's
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIASES = 300
MAX_LOGIT_BIAS = 100
MAX_EMBED_INPUTS = 64
MAX_DOCUMENTS = 1000
MAX_MESSAGES = 4096
MAX_PRIORITY = 100
ROLES = ("system", "user", "assistant", "tool")
GRPC_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_COMMAND_BYTES = 64 * 1024 * 1024  # of a gateway to a worker: a sequence with its images
MAX_RECORDS = 512  # of requests of each sort, running and ended, in a gateway's report
MAX_SNAPSHOT_BYTES = 64 * 1024 * 1024  # of a whole fleet in one message
ASSET_CHUNK_BYTES = 1024 * 1024
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ACCELERATOR = re.compile(r"[a-z]([a-z0-9_-]{0,61}[a-z0-9])?")  # a name, of this project or of a third party


CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # as OpenAI calls it, and clients look for it


class FieldError(ValueError):
    """A request's field is missing, malformed or out of range. `str()` reads: `field: problem`.

    `reason` is a code for programs where one has to tell this problem from others; else it is empty.
    """

    def __init__(self, field: str, problem: str, reason: str = "") -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.reason = reason

    def on(self, field: str) -> "FieldError":
        """The same problem of `field`."""
        return FieldError(field, self.problem, self.reason)


def check_count(field: str, count: int, most: int) -> None:
    """Raise FieldError when a list is longer than it may be: before anything is made of its items."""
    if count > most:
        raise FieldError(field, f"must be at most {most}, not {count}")


def check_accelerator(field: str, name: str) -> None:
    """Raise FieldError unless `name` may be an accelerator's; workers say whether there is a device of it."""
    if name == "auto":
        raise FieldError(field, "auto is no accelerator: name none for the best that is there")
    if not ACCELERATOR.fullmatch(name):
        rule = "1 to 63 of a-z, 0-9, _ and -, from a letter to a letter or digit"
        raise FieldError(field, f"must be the name of an accelerator ({rule}), not {name!r:.80}")


def check_range(field: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """Raise FieldError unless low <= value <= high (low < value when open_low) and value is finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise FieldError(field, f"must be a finite number, not {value}")
    if value > high or value < low or (open_low and value == low):
        bound = f"over {low:g} up to {high:g}" if open_low else f"from {low:g} to {high:g}"
        raise FieldError(field, f"must be {bound}, not {shown(value)}")


def shown(value: float) -> str:
    """A caller's number in a message: integers have no bound in JSON, and are not repeated where they are huge."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value.bit_length() <= 64 else "an integer of over 64 bits"
