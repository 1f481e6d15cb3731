"""What the command lines of all benchmarks have in common."""

import argparse
import sys
from pathlib import Path


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


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {value}")
    return value


def _new_file(text: str) -> Path:
    """Found out before anything is measured."""
    file = Path(text)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: give a file in a folder that is there")
    return file
