"""The parts of `bench/soak.py`: cases and their answers, streams, the stack, health probe, attackers, rows."""
