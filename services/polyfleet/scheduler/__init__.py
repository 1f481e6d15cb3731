"""Desired state, reconciliation and the Ray actors. The only package that imports Ray."""
