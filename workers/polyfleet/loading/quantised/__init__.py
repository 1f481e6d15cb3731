"""Quantised folders: what their configuration says of codes, and weights that stay quantised."""
