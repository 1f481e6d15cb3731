"""BlockFiles: keys and values of blocks in files of a folder, one each, that outlive the process.

A file is named by the hash of its block, which is chained to all before it from a root of model, adapter and tenant:
whoever asks by that name has the right to it. All numbers are little-endian; docs/kv-layout.md has the format.
"""

import fcntl
import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from polyfleet.kvcache.checksum import Checksum
from polyfleet.kvcache.portable import DTYPES, Array, KvLayout, require_finite

_MAGIC = b"PFKB\r\n\x1a\n"
_PREAMBLE = Struct("<8sI16s")  # magic, bytes of the header, checksum of header and payload
_NAME = re.compile(r"[0-9a-f]{32}\.kv(\.part)?")
_MOST_HEADER_BYTES = 1 << 16
_MOST_FOLDERS = 64  # of one directory: as many processes share it


class BadBlock(ValueError):
    """A file that is none of this engine's blocks, or was damaged. The message is one sentence."""


class BlockFiles:
    """Files of at most `most_bytes` in all; the least recently used go first. Not thread-safe."""

    def __init__(self, folder: Path, layout: KvLayout, block_size: int, most_bytes: int) -> None:
        """`folder` is this process's alone: see `claim`."""
        self._folder, self._layout, self._most_bytes = folder, layout, most_bytes
        self._shapes = layout.shapes(block_size)
        self._payload_bytes = block_size * layout.token_bytes
        caches = [[each.heads, each.width, each.latent] for each in layout.caches]
        self._facts = {"model": layout.model, "dtype": layout.dtype, "caches": caches, "tokens": block_size}
        self._sizes: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, name: bytes) -> bool:
        return name in self._sizes

    def scan(self) -> Iterator[str]:
        """Find what is there. Removes what other models, or other revisions and layouts, left, and says of each why.

        Files of other names, and what is no file, are let alone. Raises OSError where the folder can't be read.
        """
        paths = [each for each in self._folder.iterdir() if _NAME.fullmatch(each.name) and each.is_file()]
        for path in sorted(paths, key=_last_used):
            try:
                if path.suffix == ".part":
                    raise BadBlock("it was not written to its end")
                with path.open("rb") as file:
                    self._read_header(file, path.stem)
                self._know(bytes.fromhex(path.stem), path.stat().st_size)
            except (BadBlock, OSError) as error:
                _remove(path)
                yield f"{path.name} is removed: {error}"
        self._make_room(0)

    def write(self, name: bytes, caches: Sequence[Array]) -> None:
        """Keep a block, of each cache [2, block_size, kv heads, width]. Raises OSError, and leaves nothing."""
        header = json.dumps({**self._facts, "hash": name.hex()}).encode()
        parts = [np.ascontiguousarray(each).data.cast("B") for each in caches if each.size]
        checksum = Checksum(header)
        for part in parts:
            checksum.update(part)
        size = _PREAMBLE.size + len(header) + self._payload_bytes
        if name in self._sizes or size > self._most_bytes:
            return
        self._make_room(size)
        part_path = self._path(name).with_suffix(".kv.part")
        try:
            with part_path.open("wb") as file:
                file.write(_PREAMBLE.pack(_MAGIC, len(header), checksum.digest()) + header)
                file.writelines(parts)
            part_path.replace(self._path(name))
        except OSError:
            _remove(part_path)
            raise
        self._know(name, size)

    def read(self, name: bytes) -> tuple[Array, ...]:
        """A block, as it was written. Raises BadBlock, and removes the file, where it can't be used; and OSError."""
        path = self._path(name)
        try:
            with path.open("rb") as file:
                header, checksum = self._read_header(file, name.hex())
                payload = memoryview(bytearray(self._payload_bytes))
                if file.readinto(payload) != len(payload) or file.read(1):
                    raise BadBlock("it is truncated, or longer than its block")
            found = Checksum(header, self._layout.scanned_bytes)
            found.update(payload)
            if found.digest() != checksum:
                raise BadBlock("its checksum is wrong: it was damaged on the disk")
            caches = self._arrays(payload)
            try:
                require_finite(caches, self._layout.dtype, found.largest)
            except ValueError as error:
                raise BadBlock(str(error)) from None
        except (BadBlock, OSError):
            self._forget(name)
            raise
        self._sizes.move_to_end(name)
        with suppress(OSError):
            os.utime(path)  # so that the next process knows, too
        return caches

    def _arrays(self, payload: memoryview) -> tuple[Array, ...]:
        arrays, at = list[Array](), 0
        for shape in self._shapes:
            arrays.append(np.frombuffer(payload, DTYPES[self._layout.dtype], prod(shape), at).reshape(shape))
            at += arrays[-1].nbytes
        return tuple(arrays)

    def _read_header(self, file: Any, name: str) -> tuple[bytes, bytes]:
        """Header and checksum. Raises BadBlock for another block, model or layout."""
        start = file.read(_PREAMBLE.size)
        if len(start) < _PREAMBLE.size or not start.startswith(_MAGIC):
            raise BadBlock("it is no file of KV blocks")
        _, size, checksum = _PREAMBLE.unpack(start)
        header = file.read(min(size, _MOST_HEADER_BYTES))
        try:
            facts = json.loads(header)
        except (ValueError, RecursionError):
            raise BadBlock("its header is damaged") from None
        if not isinstance(facts, dict) or facts.get("hash") != name:
            raise BadBlock("it is another block's than its name says")
        if facts.get("model") != self._layout.model:
            raise BadBlock("it is of another model, or another revision of it")
        if facts != {**self._facts, "hash": name}:
            raise BadBlock("it is of another layout of keys and values")
        return header, checksum

    def _know(self, name: bytes, size: int) -> None:
        self._sizes[name] = size
        self._bytes += size

    def _forget(self, name: bytes) -> None:
        self._bytes -= self._sizes.pop(name, 0)
        _remove(self._path(name))

    def _make_room(self, size: int) -> None:
        while self._sizes and self._bytes + size > self._most_bytes:
            self._forget(next(iter(self._sizes)))

    def _path(self, name: bytes) -> Path:
        return self._folder / f"{name.hex()}.kv"


def claim(directory: Path) -> tuple[Path, int]:
    """The first numbered folder below `directory` that no process has, made where it is not there, and the descriptor
    of the lock that is held until it is closed. Raises OSError where that can't be, one sentence.

    A file of that name, and a folder that another user owns, are passed over: who owns it could have written anything.
    """
    for number in range(_MOST_FOLDERS):
        folder = directory / str(number)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            continue
        if folder.stat().st_uid != os.geteuid():
            continue
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        except BaseException:
            os.close(lock)
            raise
        else:
            return folder, lock
    raise OSError(f"the first {_MOST_FOLDERS} folders of {directory} are other processes' or users': remove those")


def is_claimed(folder: Path, lock: int) -> bool:
    """Whether the lock is still this folder's: nobody has removed or replaced it since."""
    try:
        return os.path.samestat(os.stat(folder / "lock"), os.fstat(lock))
    except OSError:
        return False


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
