"""Load on a gateway, bounded, and what is measured of it."""
