"""Tokens guessed ahead and verified several at once: by the sequence's own text or by a small model."""
