"""Whether a worker can be relied on: its states, its canary, its engine's silence, its device."""
