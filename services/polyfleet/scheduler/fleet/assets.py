"""Receiving a worker's tokenizer assets in chunks. Pure."""

from hashlib import sha256

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError

MAX_ASSET_BYTES = 128 * 1024 * 1024  # far above the largest vocabularies in use; bounds what one worker can send
MAX_UPLOADS = 4  # received at a time, in memory
UPLOAD_SECONDS = 120.0  # for one; then another worker is asked


class AssetUpload:
    """Collects the chunks of the assets that were asked for."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self._data = bytearray()

    def add(self, chunk: pb.AssetChunk) -> bytes | None:
        """The whole assets once complete, else None. Raises FieldError for a chunk that does not belong."""
        if chunk.hash != self.wanted:
            raise FieldError("asset.hash", f"{chunk.hash!r:.80} was not asked for")
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


class Uploads:
    """Which assets come in on which stream: each of them once at a time, MAX_UPLOADS in all."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[AssetUpload, float]] = {}

    def begin(self, wanted: str, stream: int, now: float) -> bool:
        """Whether `stream` is to send these assets; else another does, or too many do at the moment."""
        self._open = {s: (u, since) for s, (u, since) in self._open.items() if now - since < UPLOAD_SECONDS}
        if len(self._open) >= MAX_UPLOADS or any(upload.wanted == wanted for upload, _ in self._open.values()):
            return False
        self._open[stream] = AssetUpload(wanted), now
        return True

    def add(self, chunk: pb.AssetChunk, stream: int) -> bytes | None:
        """As AssetUpload.add; a chunk on a stream that is asked for nothing is dropped."""
        if stream not in self._open:
            return None
        data = self._open[stream][0].add(chunk)
        if data is not None:
            self.end(stream)
        return data

    def end(self, stream: int) -> None:
        """What came in on `stream` is whole, or won't be."""
        self._open.pop(stream, None)
