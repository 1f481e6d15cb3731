"""Replays traces against simulated workers with the gateways' own placement. Pure."""
