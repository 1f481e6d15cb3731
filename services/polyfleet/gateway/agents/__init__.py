"""Hosts that nobody can dial: their agents join here, and this gateway carries connections to and from them."""
