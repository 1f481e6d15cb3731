"""What the processes of a fleet share: configuration, flags, ports, gRPC servers' bounds, logs, metrics, signals."""
