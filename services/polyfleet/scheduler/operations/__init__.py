"""What operators see beside workers: devices, logs, requests, keys."""
