"""The wire: Inference (public), Fleet (operators, workers, gateways) and Worker (the data path)."""
