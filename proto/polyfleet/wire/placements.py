"""How a caller asks a gateway what decided its placements, and where the answer stands."""

ASK = ("polyfleet-explain", "1")  # metadata of the call
TRAILER = "polyfleet-placement"  # JSON: a list of `placement.explain.explained`, the last placements of the call
