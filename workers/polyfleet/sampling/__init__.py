"""From logits to tokens: what sampling parameters mean, once for every executor."""
