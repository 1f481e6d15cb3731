"""The front door: gRPC and OpenAI-compatible HTTP, keys, limits, relay and resumption."""

import polyfleet.wire.grpc_log  # noqa: F401 - before grpc
