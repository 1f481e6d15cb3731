"""The worker process: gRPC service, engine process, registration, metrics."""

import polyfleet.wire.grpc_log  # noqa: F401 - before grpc
