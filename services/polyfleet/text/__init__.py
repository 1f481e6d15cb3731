"""Tokenizers, chat templates, grammars, what answers are made of, incremental detokenisation, stop strings. Pure."""
