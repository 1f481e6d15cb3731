"""Tasks are ended by the one way that waits for them and is heard of when they fail."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [path for folder in ("services", "workers", "proto") for path in sorted((ROOT / folder).rglob("*.py"))]
INSTEAD = "polyfleet.process.tasks.end, or Tasks for those in the background"


@pytest.mark.parametrize("swallowing", ["return_exceptions=True", "suppress(asyncio.CancelledError"])
def test_no_source_swallows_what_a_task_ends_with(swallowing: str) -> None:
    assert len(SOURCES) > 100
    found = [str(path.relative_to(ROOT)) for path in SOURCES if swallowing in path.read_text()]
    assert not found, f"{swallowing} in {found}: use {INSTEAD}"
