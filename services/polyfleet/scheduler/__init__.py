"""Desired state, reconciliation and the Ray actors. The only package that imports Ray."""

import polyfleet.wire.grpc_log  # noqa: F401 - before grpc
