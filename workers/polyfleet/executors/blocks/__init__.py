"""Blocks of KV caches on their ways between a device, its host and others, beside steps."""
