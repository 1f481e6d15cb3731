"""The engine's options, declared once. Whatever takes, checks, passes on or documents an option reads it from here.

The flags of `polyfleet serve`, `deploy`, `generate` and of the worker, the file's `deployments[].options` with its
schema, the chart's `options`, `polyfleet.v1.WorkerOptions` and a user's stored choice all have the OPTIONS, by name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol

from polyfleet.wire.limits import FieldError, shown

OptionValue = bool | int | float | str
Group = Literal["computing", "memory", "steps"]
MOST_ADAPTERS, MOST_RANK = 1024, 512
USUAL_RANK = 16  # that an adapter may have where max_rank leaves it open
MOST = 2**31 - 1  # of a count: it crosses the wire and the C ABI in 32 bits
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MOST_DRAFTS = 16  # of a sequence in a step
MOST_NGRAM = 16
DRAFT_TOKENS, NGRAM_MIN, NGRAM_MAX = 4, 2, 8  # where the options name none
PATH = r"[^\x00-\x1f]*"
TEXTS = {
    NAME: "auto or a name of up to 64 letters, digits, '.', '_', '-'",
    PATH: "a path without control characters",
}
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Option:
    """What one option takes. Its default (0, "auto" or what is usual) needs no word of the operator."""

    name: str
    default: OptionValue
    group: Group
    help: str  # one sentence
    choices: tuple[str, ...] = ()  # of a text; empty: any name, or any path
    most: float = MOST  # of a number, whose least is 0
    pattern: str = NAME  # of a text without choices

    @property
    def kind(self) -> type[OptionValue]:
        """bool, int, float or str."""
        return type(self.default)

    @property
    def flag(self) -> str:
        """On a command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def limit(self) -> str:
        """What a value must be, in words that follow "must be"."""
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return either(self.choices) if self.choices else TEXTS[self.pattern]
        if self.kind is int:
            return f"a whole number from 1 to {self.most}, or 0 for a good choice"
        return f"a number over 0 up to {self.most:g}, or 0 for a good choice"

    def check(self, value: object) -> OptionValue:
        """The value as the option's kind. Raises FieldError with name, limit and value for any other."""
        if isinstance(value, bool):
            if self.kind is bool:
                return value
        elif self.kind is str and isinstance(value, str):
            if value in self.choices or (not self.choices and re.fullmatch(self.pattern, value)):
                return value
        elif isinstance(value, int) and self.kind in (int, float) and 0 <= value <= self.most:
            return self.kind(value)
        elif isinstance(value, float) and self.kind is float and 0 <= value <= self.most:
            return value
        raise FieldError(self.name, f"must be {self.limit}, not {_shown(value)}")

    def parse(self, text: str) -> OptionValue:
        """The value that a command line says. Raises FieldError as `check`."""
        if self.kind is bool:
            return self.check(WORDS.get(text.lower(), text))
        try:
            return self.check(self.kind(text))
        except FieldError:
            raise
        except ValueError:
            return self.check(text)

    def schema(self) -> dict[str, Any]:
        """As JSON schema."""
        if self.kind is bool:
            return {"type": "boolean"}
        if self.kind is str:
            return {"enum": list(self.choices)} if self.choices else {"type": "string", "pattern": f"^{self.pattern}$"}
        return {"type": "integer" if self.kind is int else "number", "minimum": 0, "maximum": self.most}


def _option(
    default: OptionValue,
    group: Group,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    most: float = MOST,
    pattern: str = NAME,
) -> Any:
    return field(default=default, metadata={"option": Option("", default, group, text, choices, most, pattern)})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine is to run a model; 0 and "auto" let it choose from device and model.

    Raises FieldError for a value that no device takes.
    """

    device: str = "auto"  # an accelerator's name, or one of its devices: cuda:1. Workers have one by their place
    dtype: str = _option(
        "auto",
        "computing",
        "Computing type; one that is named rules out executors of their own precision.",
        choices=("auto", "float32", "float16", "bfloat16"),
    )
    executor: str = _option(
        "auto",
        "computing",
        "What runs the model: eager, captured, persistent, vulkan or another that the device has; auto: its best.",
    )
    tensor_parallel: int = _option(
        0, "computing", "Ranks that compute the model together, each on a device of its own; 0: one."
    )
    weights: str = _option(
        "auto",
        "computing",
        "How matrices stay in memory where kernels of a GPU's read them so: auto as their file has them, dense, or"
        " quantised to fp8 or int4.",
        choices=("auto", "dense", "fp8", "int4"),
    )
    threads: int = _option(0, "computing", "CPU threads; 0: one for each core that may be used.")
    reproducible: bool = _option(
        False, "computing", "Round long prompts no more than all else, as the CPU library does with AMX."
    )
    context_length: int = _option(
        0, "memory", "Tokens of a sequence, prompt and output together; 0: the model's own, as far as the pool allows."
    )
    kv_cache_tokens: int = _option(0, "memory", "Tokens in the KV pool of all sequences; 0: by the free memory.")
    kv_dtype: str = _option(
        "auto",
        "memory",
        "How keys and values stay in memory: auto as they are computed, or in 8 bits, where twice as many fit: int8,"
        " with a scale for each token and head, or fp8 (e4m3).",
        choices=("auto", "int8", "fp8"),
    )
    block_size: int = _option(0, "memory", "Tokens of a KV block; 0: 16, or what is next to it on the device.")
    host_cache_tokens: int = _option(
        0, "memory", "Tokens whose KV blocks host memory keeps when the pool needs their place for others; 0: none."
    )
    disk_cache_dir: str = _option(
        "",
        "memory",
        "Directory on a local disk of the worker's host that keeps evicted KV blocks behind host_cache_tokens; empty:"
        " none.",
        pattern=PATH,
    )
    disk_cache_mib: int = _option(
        0, "memory", "MiB of disk_cache_dir that one worker may fill; 0: half of what is free there at its start."
    )
    prefix_cache: bool = _option(True, "memory", "Keep prompts' KV blocks for others that begin alike, as is usual.")
    max_sequences: int = _option(0, "steps", "Sequences that run at once; 0: by device and pool.")
    step_tokens: int = _option(
        0, "steps", "Rows of one step at most, over max_sequences: prompts come in pieces; 0: by device."
    )
    max_adapters: int = _option(0, "memory", "LoRA adapters that can be loaded at a time; 0: none.", most=MOST_ADAPTERS)
    max_rank: int = _option(0, "memory", "Rank that an adapter may have; 0: 16.", most=MOST_RANK)
    step_seconds: float = _option(
        0.0, "steps", "Seconds that a step with prompts should stay under: its rows adapt; 0: by device.", most=3600
    )
    speculation: str = _option(
        "off",
        "steps",
        "What guesses tokens that a step verifies: off, ngram by what followed in the text before, or a draft model.",
        choices=("off", "ngram", "draft"),
    )
    draft_model: str = _option(
        "",
        "steps",
        "With speculation draft: path of a small model of the same vocabulary, seen from the worker's host.",
        pattern=PATH,
    )
    draft_tokens: int = _option(0, "steps", "Tokens guessed for a sequence in a step at most; 0: 4.", most=MOST_DRAFTS)
    ngram_min: int = _option(0, "steps", "Tokens that must match for ngram to guess; 0: 2.", most=MOST_NGRAM)
    ngram_max: int = _option(
        0, "steps", "Tokens of a match that are told apart from longer ones, ngram_min or more; 0: 8.", most=MOST_NGRAM
    )
    canary: bool = False  # prepare a canary while loading, for a process that serves; no operator's to choose
    backend: str = field(default="", repr=False, compare=False)  # says `device` as choices and templates do; then empty

    @property
    def rank(self) -> int:
        """That an adapter may have."""
        return self.max_rank or USUAL_RANK

    def __post_init__(self) -> None:
        if self.backend:
            object.__setattr__(self, "device", _device(str.__str__(self.backend), self.device))
            object.__setattr__(self, "backend", "")
        check_whole(checked({name: getattr(self, name) for name in OPTIONS}))


OPTIONS: Mapping[str, Option] = MappingProxyType(
    {each.name: replace(each.metadata["option"], name=each.name) for each in fields(EngineOptions) if each.metadata}
)
"""What an operator may choose for each model, wherever it runs."""


def checked(given: Mapping[str, object]) -> dict[str, OptionValue]:
    """The options given.

    Raises FieldError for a name that is none, for a value that its option does not take, for steps without room for a
    row more than all that sequences run and their drafts take, and for n-grams that are shortest longer than longest.
    """
    for name in given:
        if name not in OPTIONS:
            raise FieldError(str(name)[:SHOWN_CHARACTERS], f"is no option: choose from {', '.join(OPTIONS)}")
    values = {name: OPTIONS[name].check(value) for name, value in given.items()}
    rows, sequences = int(values.get("step_tokens", 0)), max(1, int(values.get("max_sequences", 0)))
    if 0 < rows <= sequences:
        raise FieldError("step_tokens", f"must be over max_sequences ({sequences}), not {rows}")
    drafting = values.get("speculation", "off") != "off"
    most = sequences * (1 + (int(values.get("draft_tokens", 0)) or DRAFT_TOKENS))
    if drafting and 0 < rows <= most:
        problem = f"must be over max_sequences and their drafts ({most}), not {rows}"
        raise FieldError("step_tokens", problem)
    least, longest = (int(values.get(name, 0)) for name in ("ngram_min", "ngram_max"))
    if (longest or NGRAM_MAX) < (least or NGRAM_MIN):
        raise FieldError("ngram_max", f"must be at least ngram_min ({least or NGRAM_MIN}), not {longest or NGRAM_MAX}")
    return values


def check_whole(options: Mapping[str, OptionValue]) -> None:
    """Raise FieldError where, with nothing to add, a model is to draft and none is named, or one is and none is to."""
    speculation, model = options.get("speculation", "off"), options.get("draft_model", "")
    if speculation == "draft" and not model:
        raise FieldError("draft_model", "is needed where speculation is draft")
    if model and speculation != "draft":
        raise FieldError("draft_model", f"goes with speculation draft, not with {speculation}")


class Stated(Protocol):
    """A protobuf message, as far as it says what is set."""

    def ListFields(self) -> Sequence[tuple[Any, Any]]:
        """Descriptors and values of the fields that are set."""
        ...


def options_in(message: Stated) -> dict[str, OptionValue]:
    """The options that a `polyfleet.v1.WorkerOptions` states. Raises FieldError for what a worker would not take."""
    options = checked({each.name: value for each, value in message.ListFields()})
    check_whole(options)
    return options


def options_schema() -> dict[str, Any]:
    """JSON schema of the options, none of which has to be there."""
    properties = {
        each.name: {**each.schema(), "description": each.help, "default": each.default} for each in OPTIONS.values()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def either(words: tuple[str, ...]) -> str:
    """a, b or c."""
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _device(backend: str, device: str) -> str:
    """The device that both mean. Raises FieldError where they contradict each other."""
    if backend == "auto" or (device.partition(":")[0] == backend and ":" in device):
        return device
    if device not in ("auto", backend):
        raise FieldError("backend", f"({backend}) and device ({device}) mean the same: give one of them")
    return backend


def _shown(value: object) -> str:
    """Somebody's value in a message, as JSON and YAML write it where that is short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shown(value) if isinstance(value, int) else f"{value!r:.{SHOWN_CHARACTERS}}"
