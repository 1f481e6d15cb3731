"""How an agent joins."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """`address` is the gateway's gRPC port. `ca_file` has PEM roots to trust; `tls` alone: those of the system."""

    address: str
    tls: bool = False
    ca_file: Path | None = None
