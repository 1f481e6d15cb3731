"""OpenAI's chat, completions and embeddings: bodies, replies, endpoints."""
