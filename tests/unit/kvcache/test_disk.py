"""Blocks on local disk: what was written comes back, by another process too, and nothing else is ever taken for it."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kvcache.test_tiers import BLOCK, LAYOUT, contents

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kernels.int8_rows import rows_of
from polyfleet.kvcache.block_files import BadBlock, BlockFiles, claim
from polyfleet.kvcache.disk import DiskRead, DiskTier
from polyfleet.kvcache.portable import Array, KvLayout

WAIT_SECONDS = 60.0  # guards against a hang alone
FILE_BYTES = 330  # that a file of one block has at most, here
MOST = 1 << 20


def name(number: int) -> bytes:
    """A block's hash."""
    return bytes([number]) * 16


def files(folder: Path, layout: KvLayout = LAYOUT, block: int = BLOCK, most: int = MOST) -> BlockFiles:
    """What another process finds there."""
    found = BlockFiles(folder, layout, block, most)
    found.removed = list(found.scan())  # type: ignore[attr-defined]
    return found


def same(mine: tuple[Array, ...], expected: tuple[Array, ...]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(mine, expected, strict=True))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the blocks 1 and 2."""
    for number in (1, 2):
        BlockFiles(tmp_path, LAYOUT, BLOCK, MOST).write(name(number), contents(number))
    return tmp_path


def test_another_process_finds_what_was_written(written: Path) -> None:
    found = files(written)
    assert len(found) == 2
    assert name(1) in found
    assert name(3) not in found
    for number in (2, 1):
        assert same(found.read(name(number)), contents(number))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    made = files(tmp_path, most=3 * FILE_BYTES)
    size = 0
    for number in (1, 2, 3):
        made.write(name(number), contents(number))
        size = max(size, next(tmp_path.glob("*.kv")).stat().st_size)
    assert FILE_BYTES * 3 // 4 < size <= FILE_BYTES
    made.read(name(1))
    made.write(name(4), contents(4))
    assert [name(each) in made for each in (1, 2, 3, 4)] == [True, False, True, True]
    assert len(list(tmp_path.glob("*.kv"))) == 3
    os.utime(tmp_path / f"{name(3).hex()}.kv", (1, 1))
    assert [name(each) in files(tmp_path, most=2 * FILE_BYTES) for each in (1, 3, 4)] == [True, False, True]


def test_a_block_larger_than_all_is_not_written(tmp_path: Path) -> None:
    made = files(tmp_path, most=FILE_BYTES // 2)
    made.write(name(1), contents(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layout", "block", "why"),
    [
        (KvLayout("retrained", LAYOUT.caches, "float16"), BLOCK, "another model, or another revision"),
        (KvLayout("model", LAYOUT.caches, "bfloat16"), BLOCK, "another layout"),
        (KvLayout("model", (PerToken(2, 3),), "float16"), BLOCK, "another layout"),
        (LAYOUT, 2 * BLOCK, "another layout"),
    ],
)
def test_what_another_revision_or_layout_left_is_removed(written: Path, layout: KvLayout, block: int, why: str) -> None:
    (written / "notes.txt").write_text("somebody's own")
    found = files(written, layout, block)
    assert len(found) == 0
    assert all(why in line for line in found.removed)  # type: ignore[attr-defined]
    assert [each.name for each in written.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-1], "truncated"),
        (lambda data: data + b"x", "longer"),
        (lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "checksum"),
        (lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:], "checksum"),
        (lambda data: b"", "no file of KV blocks"),
        (lambda data: b"\x80\x04K\x01." + data[5:], "no file of KV blocks"),
        (lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:], "header is damaged"),
        (lambda data: data.replace(name(1).hex().encode(), name(7).hex().encode()), "another block's"),
        (lambda data: data.replace(b'"model"', b'"modem"'), "another model"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason_and_removed(written: Path, damage: object, why: str) -> None:
    found, path = files(written), written / f"{name(1).hex()}.kv"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(BadBlock, match=why):
        found.read(name(1))
    assert name(1) not in found
    assert not path.exists()
    assert same(found.read(name(2)), contents(2))


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    made, caches = files(tmp_path), contents(1)
    caches[0][0, 0, 0, 0] = np.inf
    made.write(name(1), caches)
    with pytest.raises(BadBlock, match="not finite"):
        made.read(name(1))


def test_rows_of_codes_come_back_unless_a_scale_is_broken(tmp_path: Path) -> None:
    layout = replace(LAYOUT, dtype="int8")
    made, caches = files(tmp_path, layout), tuple(rows_of(each.astype(np.float32)) for each in contents(1))
    made.write(name(1), caches)
    assert same(files(tmp_path, layout).read(name(1)), caches)
    caches[1][0, 0, 0, -1] = -1  # of a negative number
    made.write(name(2), caches)
    with pytest.raises(BadBlock, match="scales that are negative or not finite"):
        made.read(name(2))


def test_a_pipe_or_a_folder_in_a_blocks_place_is_let_alone(written: Path) -> None:
    os.mkfifo(written / f"{name(3).hex()}.kv")  # whoever opens it waits for ever
    (written / f"{name(4).hex()}.kv").mkdir()
    found = files(written)
    assert len(found) == 2
    assert found.removed == []  # type: ignore[attr-defined]


def test_what_was_not_written_to_its_end_is_removed(written: Path) -> None:
    (written / f"{name(3).hex()}.kv.part").write_bytes(b"PFKB")
    assert len(files(written)) == 2
    assert not list(written.glob("*.part"))


def test_each_process_has_a_folder_of_its_own(tmp_path: Path) -> None:
    (first, one), (second, two) = claim(tmp_path), claim(tmp_path)
    assert (first.name, second.name) == ("0", "1")
    os.close(one)
    again, three = claim(tmp_path)
    assert again == first
    assert first.stat().st_mode & 0o777 == 0o700
    os.close(two)
    os.close(three)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    made = DiskTier(tmp_path, LAYOUT, BLOCK)
    yield made
    made.close()


def finished(read: DiskRead) -> list[bytes]:
    """The blocks that came of a read."""
    waited = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        if read.over:
            break
        waited.wait(0.01)
    assert read.over
    return [found[0] for found in iter(read.take, None)]


def test_a_tier_gives_the_next_process_what_it_kept(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, LAYOUT, BLOCK)
    for number in (1, 2, 3):
        tier.put(name(number), contents(number))
    tier.close()
    later = DiskTier(tmp_path, LAYOUT, BLOCK)
    assert finished(later.read([name(1), name(2), name(9), name(3)])) == [name(1), name(2)]
    assert later.known([name(1), name(2), name(9)]) == 2
    later.close()


def test_a_folder_that_cannot_be_written_is_counted_and_tried_again_later(
    tier: DiskTier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished(tier.read([]))  # it has looked what is there
    (tmp_path / "0" / f"{name(1).hex()}.kv.part").mkdir()
    for number in (1, 2):
        tier.put(name(number), contents(number))
    finished(tier.read([name(1)]))
    tier.close()
    assert tier.problems["unwritable"] == 1
    assert len(tier) == 0
    assert "unwritable, so prompts are computed: " in caplog.text


@pytest.mark.parametrize(("given", "free"), [(0, 0), (0, 2 * FILE_BYTES // 4), (10, 1 << 30)])
def test_a_disk_without_room_for_a_block_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: int, free: int
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    full = DiskTier(tmp_path, LAYOUT, BLOCK, given)
    full.put(name(1), contents(1))
    assert finished(full.read([name(1)])) == []
    full.close()
    assert full.problems["unwritable"] == 1
    assert f"room for {given or free // 2} bytes, less than one block takes" in caplog.text


def test_a_damaged_file_ends_a_read_and_is_counted(
    tmp_path: Path, tier: DiskTier, caplog: pytest.LogCaptureFixture
) -> None:
    other = BlockFiles(tmp_path / "0", LAYOUT, BLOCK, MOST)
    finished(tier.read([]))
    for number in (1, 2):
        tier.put(name(number), contents(number))
    tier.close()
    other.write(name(3), contents(3))
    path = tmp_path / "0" / f"{name(2).hex()}.kv"
    path.write_bytes(path.read_bytes()[:-1] + b"\x77")
    later = DiskTier(tmp_path, LAYOUT, BLOCK)
    assert finished(later.read([name(1), name(2), name(3)])) == [name(1)]
    assert later.problems["refused"] == 1
    assert "its checksum is wrong" in caplog.text
    later.close()


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, FILE_BYTES), flip=st.integers(0, 255), cut=st.integers(0, 3))
def test_whatever_byte_is_damaged_or_missing_the_file_is_refused(at: int, flip: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = files(Path(folder))
        made.write(name(1), contents(1))
        path = Path(folder) / f"{name(1).hex()}.kv"
        data = bytearray(path.read_bytes())
        at %= len(data)
        data[at] ^= flip
        path.write_bytes(data[: len(data) - cut])
        if not flip and not cut:
            assert same(made.read(name(1)), contents(1))
            return
        with pytest.raises(BadBlock):
            made.read(name(1))
        assert not path.exists()
