"""What a launcher is told travels between versions."""

import copy
from dataclasses import fields, replace
from typing import Any

from polyfleet.scheduler.config import LaunchConfig
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec

SPEC = LaunchSpec("w-1", "cpu", b"", LaunchConfig(), "127.0.0.1:1", "/state")


def as_older(value: Any) -> Any:
    """As it comes from a version without its last field: Ray's pickle carries a state by names, as a copy does."""
    older = copy.copy(value)
    older.__dict__.pop(fields(value)[-1].name)
    return copy.copy(older)


def test_a_field_that_an_older_version_lacks_has_its_default() -> None:
    for value in (SPEC, LauncherReport(SPEC)):
        assert as_older(value) == value
        assert "=" in repr(as_older(value))
    assert replace(as_older(SPEC), place=2) == replace(SPEC, place=2)
