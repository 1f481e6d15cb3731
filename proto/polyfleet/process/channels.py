"""Channels between the processes of one fleet."""

FLEET_CHANNEL = (
    ("grpc.enable_http_proxy", 0),  # a proxy is for the world outside the fleet
    ("grpc.use_local_subchannel_pool", 1),  # each dial is a new one, which inherits no older channel's back-off
)
"""gRPC's arguments that all of them have."""
