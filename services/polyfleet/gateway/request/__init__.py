"""One request on its way: validated, encoded, queued, relayed, put into words, accounted for."""
