"""Fleet snapshots and place(): which worker serves a request, and why. Pure."""
