"""What a stream costs the gateway, beside bare gRPC servers and relays: `python -m bench.gateway`."""
