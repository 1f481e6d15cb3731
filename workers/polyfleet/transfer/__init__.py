"""The channel on which keys and values travel from worker to worker; docs/kv-transfer.md has the protocol."""
