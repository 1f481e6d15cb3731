"""The OpenAI-compatible HTTP front end of the gateway: bodies in, `GenerationApi`, JSON or server-sent events out."""

from polyfleet.gateway.http.app import create_app
from polyfleet.gateway.http.monitoring import create_metrics_app

__all__ = ["create_app", "create_metrics_app"]
