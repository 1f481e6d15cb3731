"""Sequences, the Batcher and Executors: the runtime that a plain Python script can drive."""
