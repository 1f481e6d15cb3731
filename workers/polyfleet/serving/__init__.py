"""The worker process: gRPC service, engine process, registration, metrics."""
