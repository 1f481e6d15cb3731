"""The engine process of simulated workers, whose server is a real worker's. Needs no torch."""
