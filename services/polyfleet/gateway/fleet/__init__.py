"""The fleet as one gateway knows it: snapshots, a session with each worker, models and their tokenizers."""
