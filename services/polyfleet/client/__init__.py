"""The Python client that users import: `Client` and, for asyncio, `AsyncClient`."""

from polyfleet.client.aio import AsyncClient, AsyncCompletionStream
from polyfleet.client.channel import Tls
from polyfleet.client.errors import (
    CallCancelledError,
    DataLossError,
    DeadlineExceededError,
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    PolyfleetError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from polyfleet.client.requests import GenerateOptions
from polyfleet.client.retry import NO_RETRIES, RetryPolicy
from polyfleet.client.sync import Client, CompletionStream
from polyfleet.client.types import Choice, Completion, Delta, Embeddings, Message, Model, TokenLogprobs, Tokens, Usage

__all__ = [
    "NO_RETRIES",
    "AsyncClient",
    "AsyncCompletionStream",
    "CallCancelledError",
    "Choice",
    "Client",
    "Completion",
    "CompletionStream",
    "DataLossError",
    "DeadlineExceededError",
    "Delta",
    "Embeddings",
    "FieldViolation",
    "GenerateOptions",
    "InvalidArgumentError",
    "Message",
    "Model",
    "NotFoundError",
    "PermissionDeniedError",
    "PolyfleetError",
    "ResourceExhaustedError",
    "RetryPolicy",
    "Tls",
    "TokenLogprobs",
    "Tokens",
    "UnauthenticatedError",
    "UnavailableError",
    "Usage",
]
