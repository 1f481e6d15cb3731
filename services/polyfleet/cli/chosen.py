"""What this user chose before, for commands that run a model here: a backend, and engine options made for it."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from polyfleet.cli.config import Deployment, StatedOptions
from polyfleet.cli.errors import CliError, ExitCode, sentences
from polyfleet.cli.terminal.output import err
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import OPTIONS, OptionValue, checked

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Choice:
    """Holds where nothing else is said. See `polyfleet config show`."""

    backend: str = AUTO
    options: Mapping[str, OptionValue] = field(default_factory=dict)

    @classmethod
    def read(cls) -> "Choice":
        """From the user's file and POLYFLEET_BACKEND. Raises CliError when it can't be had."""
        from polyfleet.tuning.choice import get_backend, user_choice

        with sentences():
            chosen = user_choice()
            backend = str(chosen.pop("backend", AUTO))
            if backend != AUTO:
                get_backend()
        return cls(backend, chosen)

    def accelerators(self, given: Collection[str]) -> tuple[str, ...]:
        """The accelerators given, else the one chosen; none: any."""
        return tuple(given) or ((self.backend,) if self.backend != AUTO else ())

    def options_beside(self, given: Mapping[str, OptionValue], accelerators: Collection[str]) -> dict[str, OptionValue]:
        """The options given, and of the rest the chosen ones, unless they are for other accelerators.

        Raises CliError where they don't go together.
        """
        fits = not accelerators or set(accelerators) == {self.backend}
        try:
            return checked({**(self.options if fits else {}), **given})
        except FieldError as error:
            raise CliError(f"{error}; `polyfleet config show` prints your choice.", ExitCode.BAD_INPUT) from None

    def complete(self, deployment: Deployment) -> Deployment:
        """The deployment with what was chosen where it says nothing."""
        accelerators = self.accelerators(deployment.accelerators)
        options = StatedOptions(self.options_beside(deployment.options, accelerators))
        return msgspec.structs.replace(deployment, accelerators=accelerators, options=options)


def say_chosen(given: Mapping[str, OptionValue], taken: Mapping[str, OptionValue]) -> None:
    """Tell which options were taken from the choice."""
    added = [f"{OPTIONS[name].flag} {json.dumps(value)}" for name, value in taken.items() if name not in given]
    if added:
        err.print(f"From your choice (`polyfleet config show`): {', '.join(added)}.", style="dim", markup=False)
