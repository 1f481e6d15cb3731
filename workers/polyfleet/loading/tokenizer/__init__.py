"""What tokenizers of both kinds of source come to: one canonical document and its parts."""
