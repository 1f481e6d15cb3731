"""What a fetch from Hugging Face's hub tells on its way, and why it failed. Needs the package huggingface_hub."""

import threading
from collections.abc import Callable
from typing import Any

from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils import tqdm


def bar_that_tells(came: Callable[[], None]) -> type[Any]:
    """A class of progress bars that calls `came` whenever something came, from one thread at a time."""
    lock = threading.Lock()

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def update(self, n: float | None = 1) -> Any:
            with lock:
                came()
            return super().update(n)

    return Bar


def reason_of(error: Exception) -> str:
    """Why, without what huggingface_hub adds on further lines."""
    if isinstance(error, GatedRepoError):
        return "it is gated: accept its terms there and set HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such model, or it is private and HF_TOKEN is not set to a token that may read it"
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
