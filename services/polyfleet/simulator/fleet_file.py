"""The fleet to simulate, from a YAML file: kinds of workers, how many, how fast, and when they fail."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import read_config

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Share = Annotated[float, Meta(gt=0, le=1e6)]


class Speed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step takes: `step_seconds` + sequences x `sequence_seconds` + tokens that they hold x `token_seconds` +
    its prompt tokens / `prefill_tokens_per_second`."""

    prefill_tokens_per_second: Share
    step_seconds: Seconds
    sequence_seconds: Seconds
    token_seconds: Seconds = 0.0

    def step(self, sequences: int, held: int, prompt: int) -> float:
        """Seconds of one."""
        decode = self.step_seconds + sequences * self.sequence_seconds + held * self.token_seconds
        return decode + prompt / self.prefill_tokens_per_second

    def scaled(self, factor: float) -> "Speed":
        """So many times as fast."""
        return Speed(
            prefill_tokens_per_second=self.prefill_tokens_per_second * factor,
            step_seconds=self.step_seconds / factor,
            sequence_seconds=self.sequence_seconds / factor,
            token_seconds=self.token_seconds / factor,
        )


class SpeedsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast accelerators are taken to be: the fastest one, and what share of its speed the others have."""

    fastest: Speed
    shares: dict[str, Share]


HERE = Path(__file__).parent
UNLIKE = HERE / "unlike.yaml"  # the fleet that placement is measured on


@cache
def speeds() -> Mapping[str, Speed]:
    """By accelerator."""
    found = read_config(HERE / "speeds.yaml", SpeedsFile)
    return {name: found.fastest.scaled(share) for name, share in found.shares.items()}


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker of the group is gone from `at` on, for `seconds`; `worker` is its number there, from 0 on."""

    at: Seconds
    seconds: Seconds
    worker: Annotated[int, Meta(ge=0)] = 0

    @property
    def end(self) -> float:
        """When it is back."""
        return self.at + self.seconds


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many equal workers. `speed` scales what the accelerator is taken for, unless `steps` says it outright."""

    accelerator: str
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,100}$")] = ""
    workers: Annotated[int, Meta(ge=1, le=4096)] = 1
    role: Literal["both", "prefill", "decode"] = "both"
    fetch_tokens_per_second: Share = 1e5  # of prompts that another worker computed, on their way
    import_tokens_per_second: Share = 1e6  # the same while it takes them in, and its steps wait
    speed: Share = 1.0
    steps: Speed | None = None
    max_sequences: Count = 64
    kv_tokens: Count = 262_144
    block_size: Annotated[int, Meta(ge=1, le=4096)] = 16
    context_length: Count = 32_768
    step_tokens: Count = 512  # of prompts in one step
    most_step_seconds: Seconds = 0.0  # that a step with prompts should stay under, as a worker's; 0: what it takes
    jitter: Annotated[float, Meta(ge=0, lt=1)] = 0.05  # of a step's time, up or down
    failures: tuple[Failure, ...] = ()

    @property
    def pace(self) -> Speed:
        """How fast its workers truly are."""
        return self.steps or speeds()[self.accelerator].scaled(self.speed)

    def is_up(self, place: int, seconds: float) -> bool:
        """Whether that worker of it is there, so many seconds after the begin."""
        return not any(each.worker == place and each.at <= seconds < each.end for each in self.failures)


class SimulatedWorker(NamedTuple):
    """One of a fleet: its id, the group, and its number there."""

    worker_id: str
    group: Group
    place: int


class FleetFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    groups: Annotated[tuple[Group, ...], Meta(min_length=1)]

    def each_worker(self) -> list[SimulatedWorker]:
        """All of them, each id once."""
        found: dict[str, SimulatedWorker] = {}
        for number, group in enumerate(self.groups):
            for place in range(group.workers):
                worker_id = f"{group.name or group.accelerator}-{place}"
                while worker_id in found:
                    worker_id += f"-{number}"
                found[worker_id] = SimulatedWorker(worker_id, group, place)
        return list(found.values())


def read_fleet(path: Path) -> FleetFile:
    """The fleet of a file. Raises ConfigError, one sentence, for what is no fleet."""
    found = read_config(path, FleetFile)
    for group in found.groups:
        if group.accelerator not in speeds():
            known = ", ".join(speeds())
            raise ConfigError(f"{path}: accelerator: {group.accelerator!r:.80} is none of {known}.")
        if group.kv_tokens < group.block_size:
            raise ConfigError(f"{path}: kv_tokens: {group.kv_tokens} are less than a block of {group.block_size}.")
        for failure in group.failures:
            if failure.worker >= group.workers:
                raise ConfigError(f"{path}: failures: there is no worker {failure.worker} among {group.workers}.")
    return found
