"""What the engine's own process needs of an engine, whose module imports torch."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from polyfleet.engine.canary.canary import CanarySource
from polyfleet.engine.facts import EngineFacts, EngineStatus, LoadedAdapter
from polyfleet.kvcache.travelling import PrefixRoom
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

Progress = Callable[[float, str], None]


class Assets(Protocol):
    """As `polyfleet.loading.model.TokenizerAssets`, whose module imports torch."""

    @property
    def hash(self) -> str:
        """sha256 of the document, in hex."""
        ...

    @property
    def document(self) -> bytes:
        """Canonical JSON."""
        ...


class ServedEngine(Protocol):
    """What this process needs of `polyfleet.engine.Engine`, whose docstrings say more."""

    @property
    def facts(self) -> EngineFacts:
        """What it serves."""
        ...

    @property
    def tokenizer(self) -> "Assets | None":
        """What text needs; None for a model without a tokenizer."""
        ...

    @property
    def canary(self) -> CanarySource | None:
        """What shows whether it computes rightly; None when there is nothing to ask."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        ...

    @property
    def alarm(self) -> int | None:
        """A descriptor that can be read from once it has broken down by itself."""
        ...

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence; raises FieldError."""
        ...

    def cancel(self, sequence_id: str) -> object:
        """End a sequence."""
        ...

    def add_adapter(self, path: str) -> LoadedAdapter:
        """Load one; raises ValueError."""
        ...

    def drop_adapter(self, fingerprint: str) -> object:
        """Let no new sequence have it."""
        ...

    def step(self) -> list[SequenceUpdate]:
        """Compute one step."""
        ...

    def status(self) -> EngineStatus:
        """How it is doing."""
        ...

    def woken(self) -> None:
        """A descriptor that is watched could be read from, and there is no work: see why, so that it can't be for long.

        Raises DeviceTimeout where the engine has broken down by itself.
        """
        ...

    def check(self) -> None:
        """Raise AssertionError unless blocks and ledger balance. It looks at every block."""
        ...


@runtime_checkable
class TravellingPrefixes(Protocol):
    """An engine whose keys and values other workers may have."""

    def attend(self, room: PrefixRoom) -> None:
        """Give prefixes to the peers that ask there, and fetch theirs."""
        ...


EngineFactory = Callable[[str, EngineOptions, Progress], ServedEngine]
