"""Tokenizer assets by content hash, from whoever serves `Fleet.GetTokenizer`: the scheduler, or another gateway."""

import hashlib
from typing import Any

from polyfleet.v1 import fleet_pb2, fleet_pb2_grpc
from polyfleet.wire.auth import Metadata

MAX_ASSET_BYTES = 256 * 1024 * 1024
ASSET_SECONDS = 60.0


class AssetError(RuntimeError):
    """Tokenizer assets did not arrive whole."""


async def fetch_asset(channel: Any, metadata: Metadata, content_hash: str) -> bytes:
    """The assets document of this sha256. Raises AssetError or grpc.aio.AioRpcError."""
    document = bytearray()
    request = fleet_pb2.GetTokenizerRequest(hash=content_hash)
    stub = fleet_pb2_grpc.FleetStub(channel)
    async for chunk in stub.GetTokenizer(request, metadata=metadata, timeout=ASSET_SECONDS):
        document += chunk.data
        if len(document) > MAX_ASSET_BYTES:
            raise AssetError(f"Tokenizer {content_hash} is larger than {MAX_ASSET_BYTES} bytes.")
    if hashlib.sha256(document).hexdigest() != content_hash:
        raise AssetError(f"Tokenizer {content_hash} arrived with other content.")
    return bytes(document)
