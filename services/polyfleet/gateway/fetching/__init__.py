"""Images by their addresses, from hosts that the operator allowed."""
