"""Conformance: whether a backend on this very machine does what it says; a report that its user can send."""
