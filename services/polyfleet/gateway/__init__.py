"""The front door: gRPC, HTTP as OpenAI and Anthropic have it, keys, limits, relay and resumption."""

import polyfleet.wire.grpc_log  # noqa: F401 - before grpc
