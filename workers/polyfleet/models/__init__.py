"""Architectures, each written once against the op vocabulary."""
