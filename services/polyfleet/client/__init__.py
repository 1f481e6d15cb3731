"""The Python client that users import."""
