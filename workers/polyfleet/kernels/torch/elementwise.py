"""Reference implementations of what is computed element by element, without attributes."""

from torch.nn import functional as F

from polyfleet.graph.ops import Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel


def bind_add(op: Op, context: KernelContext) -> Kernel:
    """x, y -> x + y."""
    return lambda step, x, y: x + y


def bind_mul(op: Op, context: KernelContext) -> Kernel:
    """x, y -> x * y."""
    return lambda step, x, y: x * y


def bind_silu(op: Op, context: KernelContext) -> Kernel:
    """x -> x * sigmoid(x)."""
    return lambda step, x: F.silu(x)


def bind_sigmoid(op: Op, context: KernelContext) -> Kernel:
    """x -> 1 / (1 + exp(-x))."""
    return lambda step, x: x.sigmoid()


def bind_relu(op: Op, context: KernelContext) -> Kernel:
    """x -> max(x, 0)."""
    return lambda step, x: F.relu(x)


def bind_gelu(op: Op, context: KernelContext) -> Kernel:
    """x -> x * Φ(x)."""
    return lambda step, x: F.gelu(x)


def bind_gelu_tanh(op: Op, context: KernelContext) -> Kernel:
    """x -> x * Φ(x), nearly (Hendrycks and Gimpel, arXiv 1606.08415)."""
    return lambda step, x: F.gelu(x, approximate="tanh")


ELEMENTWISE = (
    Implementation(OpKind.ADD, "reference", bind_add, capturable=True),
    Implementation(OpKind.MUL, "reference", bind_mul, capturable=True),
    Implementation(OpKind.SILU, "reference", bind_silu, capturable=True),
    Implementation(OpKind.SIGMOID, "reference", bind_sigmoid, capturable=True),
    Implementation(OpKind.RELU, "reference", bind_relu, capturable=True),
    Implementation(OpKind.GELU, "reference", bind_gelu, capturable=True),
    Implementation(OpKind.GELU_TANH, "reference", bind_gelu_tanh, capturable=True),
)
