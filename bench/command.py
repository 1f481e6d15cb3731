"""What the command lines of all benchmarks have in common."""

import argparse
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import NoReturn


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring, with its examples, and that knows where rows go: `--json FILE`."""
    spec = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(
        prog=f"python -m {spec.name.removesuffix('.__main__')}" if spec else None,
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", type=_new_file, metavar="FILE", help="also write the rows there")
    return parser


def run(main: Callable[[], int | None], *errors: type[Exception]) -> NoReturn:
    """Exit with what `main` returns; with 2 and a sentence where the engine, a file or one of `errors` refuses."""
    try:
        sys.exit(main())
    except Exception as error:
        if not isinstance(error, (*_refusals(), *errors)):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _refusals() -> tuple[type[Exception], ...]:
    """Of what was given. Imported late: some bring torch, which not every benchmark has."""
    from polyfleet.backends.protocol import BackendUnavailable
    from polyfleet.engine.choosing.executors import NoExecutor
    from polyfleet.models.errors import ModelFileError
    from polyfleet.wire.limits import FieldError

    return BackendUnavailable, FieldError, ModelFileError, NoExecutor, OSError


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {value}")
    return value


def above_zero(text: str) -> float:
    """A number above 0."""
    value = float(text)
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
    return value


def _new_file(text: str) -> Path:
    """Found out before anything is measured."""
    file = Path(text)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: give a file in a folder that is there")
    return file
