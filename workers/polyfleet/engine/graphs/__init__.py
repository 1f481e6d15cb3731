"""Kernel graphs of users: recorded op by op, compiled for an executor, fed with arrays."""
