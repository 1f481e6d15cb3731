"""Model files: GGUF and Hugging Face folders to configuration, weights and tokenizer assets."""
