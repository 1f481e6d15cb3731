"""A disk tier's folder that is removed, replaced or somebody else's while a worker runs: it is made again, or said."""

import os
import shutil
from pathlib import Path

import pytest
from tests.unit.kvcache.test_disk import finished, name, tier
from tests.unit.kvcache.test_tiers import BLOCK, LAYOUT, contents

from polyfleet.kvcache.block_files import claim
from polyfleet.kvcache.disk import DiskTier

__all__ = ["tier"]


def kept(tier: DiskTier, *numbers: int) -> int:
    """Put these, and see how many of them are there once that is over."""
    for number in numbers:
        tier.put(name(number), contents(number))
    while tier._writes:
        finished(tier.read([]))
    finished(tier.read([]))  # behind what was being written
    return tier.known([name(number) for number in numbers])


@pytest.mark.parametrize("removed", ["folder", "directory", "lock"])
def test_what_is_removed_while_it_runs_is_made_again(
    removed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path / "tier", LAYOUT, BLOCK)
    assert kept(tier, 1, 2) == 2
    folder = tmp_path / "tier" / "0"
    if removed == "lock":
        (folder / "lock").unlink()
    else:
        shutil.rmtree(folder if removed == "folder" else folder.parent)
    assert kept(tier, 3) == 1
    assert tier.known([name(1)]) == (removed == "lock")
    assert finished(tier.read([name(3)])) == [name(3)]
    tier.close()
    assert caplog.text.count("were removed by somebody") == 1
    assert not tier.problems["unwritable"]
    later = DiskTier(tmp_path / "tier", LAYOUT, BLOCK)
    assert finished(later.read([name(3)])) == [name(3)]
    later.close()


def test_a_read_that_finds_no_folder_forgets_all_that_was_there(tmp_path: Path, tier: DiskTier) -> None:
    assert kept(tier, 1, 2, 3) == 3
    shutil.rmtree(tmp_path / "0")
    assert finished(tier.read([name(1), name(2)])) == []
    assert (len(tier), tier.problems["unreadable"]) == (0, 1)


def test_a_folder_that_another_process_has_made_meanwhile_is_left_to_it(tmp_path: Path, tier: DiskTier) -> None:
    assert kept(tier, 1) == 1
    shutil.rmtree(tmp_path / "0")
    other = DiskTier(tmp_path, LAYOUT, BLOCK)
    assert kept(other, 2) == 1
    assert kept(tier, 3) == 1
    other.close()
    assert {each.parent.name: each.stem for each in tmp_path.rglob("*.kv")} == {"0": name(2).hex(), "1": name(3).hex()}


def test_a_file_in_the_directorys_place_is_said_once_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("polyfleet.kvcache.disk.RETRY_SECONDS", 0.0)
    place = tmp_path / "tier"
    tier = DiskTier(place, LAYOUT, BLOCK)
    assert kept(tier, 1) == 1
    shutil.rmtree(place)
    place.write_text("somebody's own")
    assert kept(tier, 2, 3) == 0
    assert (len(tier), tier.problems["unwritable"]) == (0, 2)
    assert caplog.text.count("are unwritable, so prompts are computed: ") == 1
    assert caplog.text.count("were removed by somebody") == 1
    place.unlink()
    assert kept(tier, 4) == 1
    tier.close()


def test_files_and_other_users_folders_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0").write_text("somebody's own")
    first, lock = claim(tmp_path)
    assert first.name == "1"
    os.close(lock)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr("polyfleet.kvcache.block_files._MOST_FOLDERS", 3)
    with pytest.raises(OSError, match="are other processes' or users': remove those"):
        claim(tmp_path)
