"""Who takes part in which step: the Batcher, what sequences hold, steps under way and what they came to."""
