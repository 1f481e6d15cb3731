"""The OpenAI-compatible HTTP front end of the gateway: bodies in, `GenerationApi`, JSON or server-sent events out."""

from polyfleet.gateway.http.app import create_app

__all__ = ["create_app"]
