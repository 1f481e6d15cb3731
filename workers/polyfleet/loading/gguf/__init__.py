"""GGUF files: their header, metadata, tensor directory and tokenizer."""
