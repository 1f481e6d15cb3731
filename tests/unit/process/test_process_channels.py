"""What a process shows the fleet's others, from a file that may change while it runs."""

from pathlib import Path

import pytest

from polyfleet.process.channels import fleet_access
from polyfleet.wire.auth import bearer_metadata


def test_a_token_file_that_is_gone_is_told_once_and_the_first_token_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file := tmp_path / "token").write_text("first")
    access = fleet_access(file, None)
    for _ in range(2):
        file.write_text("second")
        assert access.current_metadata() == bearer_metadata("second")
        file.unlink()
        assert [access.current_metadata() for _ in range(3)] == [bearer_metadata("first")] * 3
    assert len(caplog.messages) == 2
    assert f"{file} can't be read" in caplog.messages[0]
