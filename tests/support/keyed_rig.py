"""A gateway with keys, and what callers with and without one send to its HTTP port."""

import hashlib
import json
from pathlib import Path

import yaml
from tests.support.gateway_rig import GatewayRig
from tests.support.raw_http import RawConnection

KEY = "secret-a"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
AUTHORIZED = POST + f"Authorization: Bearer {KEY}\r\n".encode()
BODY = json.dumps({"prompt": "Hi", "max_tokens": 3, "stream": True}).encode()
WHOLE = AUTHORIZED + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


class KeyedRig(GatewayRig):
    """With keys and ways to its HTTP port."""

    async def __aenter__(self) -> "KeyedRig":
        await super().__aenter__()
        return self

    @property
    def port(self) -> int:
        return self.gateway.http.port

    async def open(self, data: bytes = b"") -> RawConnection:
        return await RawConnection.open(self.port, data)

    def refused(self, reason: str) -> float:
        labels = {"protocol": "http", "reason": reason}
        registry = self.gateway.metrics.registry
        return registry.get_sample_value("polyfleet_connections_refused_total", labels) or 0.0

    def connections(self) -> int:
        value = self.gateway.metrics.registry.get_sample_value("polyfleet_connections", {"protocol": "http"})
        return int(value or 0)


def keys_file(folder: Path) -> str:
    keys = [{"id": "a", "hash": hashlib.sha256(KEY.encode()).hexdigest()}]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    return str(folder / "keys.yaml")
