"""Receiving a worker's tokenizer assets in chunks, and handing them on in chunks. Pure."""

from collections.abc import Iterator
from hashlib import sha256

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import ASSET_CHUNK_BYTES, FieldError

MAX_ASSET_BYTES = 256 * 1024 * 1024  # far above the largest vocabularies in use; bounds what one worker can send


class AssetUpload:
    """Collects the chunks of the assets that were asked for."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self._data = bytearray()

    def add(self, chunk: pb.AssetChunk) -> bytes | None:
        """The whole assets once complete, else None. Raises FieldError for a chunk that does not belong."""
        if chunk.hash != self.wanted:
            raise FieldError("asset.hash", f"{chunk.hash!r} was not asked for")
        if chunk.total_bytes > MAX_ASSET_BYTES:
            raise FieldError("asset.total_bytes", f"must be at most {MAX_ASSET_BYTES}, not {chunk.total_bytes}")
        self._data += chunk.data
        if len(self._data) > chunk.total_bytes:
            raise FieldError("asset.data", f"is longer than the {chunk.total_bytes} bytes announced")
        if len(self._data) < chunk.total_bytes:
            return None
        found = sha256(self._data).hexdigest()
        if found != self.wanted:
            raise FieldError("asset.data", f"has sha256 {found}, not {self.wanted}")
        return bytes(self._data)


def chunks(content_hash: str, data: bytes) -> Iterator[pb.AssetChunk]:
    """`data` as messages; one empty message for empty data."""
    for start in range(0, len(data) or 1, ASSET_CHUNK_BYTES):
        part = data[start : start + ASSET_CHUNK_BYTES]
        yield pb.AssetChunk(hash=content_hash, total_bytes=len(data), data=part)
