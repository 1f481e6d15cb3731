"""A prompt whose answer is known: what it is, where its answer comes from, what an engine's answer says."""
