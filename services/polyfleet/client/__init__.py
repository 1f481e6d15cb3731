"""The Python client that users import: `Client` and, for asyncio, `AsyncClient`."""

import polyfleet.wire.grpc_log  # noqa: F401 - before grpc
from polyfleet.client.aio import AsyncClient, AsyncCompletionStream
from polyfleet.client.channel import Tls
from polyfleet.client.errors import (
    AbortedError,
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
from polyfleet.client.retry import NO_RETRIES, RetryPolicy
from polyfleet.client.sync import Client, CompletionStream
from polyfleet.client.types import Choice, Completion
from polyfleet.wire.answers import Delta, Embeddings, FinishReason, Model, Ranked, Ranking, TokenLogprobs, Tokens, Usage
from polyfleet.wire.images import Image
from polyfleet.wire.requests import GenerateOptions, Message
from polyfleet.wire.tools import ToolCall, ToolCallDelta

__all__ = [
    "NO_RETRIES",
    "AbortedError",
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
    "FinishReason",
    "GenerateOptions",
    "Image",
    "InvalidArgumentError",
    "Message",
    "Model",
    "NotFoundError",
    "PermissionDeniedError",
    "PolyfleetError",
    "Ranked",
    "Ranking",
    "ResourceExhaustedError",
    "RetryPolicy",
    "Tls",
    "TokenLogprobs",
    "Tokens",
    "ToolCall",
    "ToolCallDelta",
    "UnauthenticatedError",
    "UnavailableError",
    "Usage",
]
