"""Simulated workers as real processes: the worker's own server around an engine of the simulator. Needs no torch."""
