"""Hugging Face folders: config.json, tokenizer.json, safetensors, and what else lies beside them."""
