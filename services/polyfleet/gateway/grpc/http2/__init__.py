"""A server of gRPC on the event loop itself: HTTP/2 (RFC 9113) as far as gRPC uses it, and nothing of threads."""
