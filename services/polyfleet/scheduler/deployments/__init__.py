"""The wish and what follows from it: deployments and their adapters, checked and reconciled."""
