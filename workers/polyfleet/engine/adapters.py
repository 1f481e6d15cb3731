"""Adapters of a running engine: which are loaded, by fingerprint, and which numbers the executor knows them by."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfleet.engine.executor import Executor
from polyfleet.loading.adapter import Adapter, load_adapter
from polyfleet.models.config import ModelConfig
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

if TYPE_CHECKING:
    from polyfleet.engine.step.sequence import Sequence


class Adapters:
    """Loads and drops them between steps. One that is dropped takes no more sequences; those that have it end with it,
    and only then is its place free. Not thread-safe.
    """

    def __init__(
        self, executor: Executor, config: ModelConfig, options: EngineOptions, adaptable: Collection[str]
    ) -> None:
        """`adaptable`: the weights that adapters may change."""
        self._executor: Any = executor
        self._config, self._options, self._adaptable = config, options, adaptable
        self._numbers: dict[str, int] = {}  # by fingerprint
        self._dropped: set[int] = set()  # numbers whose sequences have not all ended
        self._free = list(range(options.max_adapters - 1, -1, -1))

    def load(self, path: str | Path, present: Iterable["Sequence"]) -> Adapter:
        """Load an adapter's folder; one with the same numbers again costs nothing.

        Raises ValueError, one sentence, for a folder that can't be taken or without room; then nothing has changed.
        """
        most = self._options.max_adapters
        if not most:
            raise ValueError("this model takes no adapters: deploy it with max_adapters over 0")
        adapter = load_adapter(path, self._config, self._adaptable, self._options.rank)
        if adapter.fingerprint in self._numbers:
            return adapter
        self.free(present)
        if not self._free:
            leaving = f", {len(self._dropped)} of them in use until their sequences end" if self._dropped else ""
            raise ValueError(f"{path}: there is room for {most} adapters (max_adapters){leaving}")
        number = self._free[-1]
        try:
            self._executor.set_adapter(number, adapter.parts)
        except MemoryError:
            raise ValueError(f"{path}: there is no memory for the adapter") from None
        self._numbers[adapter.fingerprint] = self._free.pop()
        return adapter

    def drop(self, fingerprint: str, present: Iterable["Sequence"]) -> bool:
        """New sequences find it no more; False when it is not there."""
        number = self._numbers.pop(fingerprint, None)
        if number is None:
            return False
        self._dropped.add(number)
        self.free(present)
        return True

    def number(self, fingerprint: str) -> int:
        """The executor's. Raises FieldError for one that is not loaded."""
        if fingerprint not in self._numbers:
            raise FieldError("adapter", f"{fingerprint!r:.64} is not loaded here")
        return self._numbers[fingerprint]

    def free(self, present: Iterable["Sequence"]) -> None:
        """Free the places of dropped ones that no sequence has any more."""
        if not self._dropped:
            return
        for number in self._dropped - {each.adapter for each in present}:
            self._executor.set_adapter(number, {})
            self._dropped.remove(number)
            self._free.append(number)
