"""Ops in torch, on any device: the reference of each, and what launches less of them."""
