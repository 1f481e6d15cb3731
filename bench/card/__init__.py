"""The engine on one accelerator, with random weights in the shapes of known models: decode, prefill, profile, peer."""
