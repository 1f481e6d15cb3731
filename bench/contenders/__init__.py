"""What bench/engine.py compares: our engine and its peers, each in a process of its own behind one protocol."""
