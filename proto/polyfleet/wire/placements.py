"""How a caller asks a gateway what decided its placements, and where the answer stands."""

ASK = ("polyfleet-explain", "1")  # metadata of a gRPC call, header of an HTTP request
# Trailer of the call, header of the answer: JSON, a list of `placement.explain.explained`, the last placements of it.
TRAILER = "polyfleet-placement"
