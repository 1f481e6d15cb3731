"""The dispatch table that executors choose from: reference implementations first, faster ones behind them."""

from polyfleet.kernels.dispatch import Implementation
from polyfleet.kernels.torch.batched import BATCHED
from polyfleet.kernels.torch.reference import REFERENCE


def implementations() -> tuple[Implementation, ...]:
    """All implementations that could be imported here."""
    return (*REFERENCE, *BATCHED, *_of_triton())


def _of_triton() -> tuple[Implementation, ...]:
    try:
        from polyfleet.kernels.triton import TRITON
    except ImportError:  # the vendor's torch brings Triton, or there is none
        return ()
    return TRITON
