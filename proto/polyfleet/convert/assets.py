"""Tokenizer assets as messages."""

from collections.abc import Iterator

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import ASSET_CHUNK_BYTES


def asset_chunks(content_hash: str, document: bytes) -> Iterator[pb.AssetChunk]:
    """A document in pieces that fit a message; one empty message for an empty one."""
    for start in range(0, len(document) or 1, ASSET_CHUNK_BYTES):
        part = document[start : start + ASSET_CHUNK_BYTES]
        yield pb.AssetChunk(hash=content_hash, total_bytes=len(document), data=part)
