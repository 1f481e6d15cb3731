"""The polyfleet command."""

import polyfleet.wire.grpc_log  # noqa: F401 - before grpc
