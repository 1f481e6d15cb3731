"""One file for each client library, run by the Python of an environment that has it."""
