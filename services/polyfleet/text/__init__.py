"""Tokenizers, chat templates, incremental detokenisation, stop strings. Pure."""
