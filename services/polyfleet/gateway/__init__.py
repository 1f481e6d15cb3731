"""The front door: gRPC and OpenAI-compatible HTTP, keys, limits, relay and resumption."""
