"""What rank 0 and another rank say to each other over their socket: a byte says that a plan is posted, or what follows.

A message is a JSON object and, behind it, arrays as they are. Each is answered by one; plans are not.
"""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLAN, MESSAGE = b"p", b"m"
_HEAD = struct.Struct("<I")
Arrays = Sequence[NDArray[Any]]
Message = dict[str, Any]


def send(end: socket.socket, message: Message, arrays: Arrays = ()) -> None:
    """Send a message; its `arrays` key tells of what follows."""
    kinds = [[each.dtype.str, list(each.shape)] for each in arrays]
    text = json.dumps({**message, "arrays": kinds}).encode()
    end.sendall(MESSAGE + _HEAD.pack(len(text)) + text)
    for each in arrays:
        end.sendall(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data)


def receive_kind(end: socket.socket) -> bytes:
    """PLAN or MESSAGE, whichever comes next; EOFError at the end."""
    return bytes(_exactly(end, 1))


def receive(end: socket.socket) -> tuple[Message, list[NDArray[Any]]]:
    """The rest of a message behind its first byte. Raises EOFError, and TimeoutError as the socket does."""
    (length,) = _HEAD.unpack(_exactly(end, _HEAD.size))
    message: Message = json.loads(_exactly(end, length))
    arrays = []
    for kind, shape in message.pop("arrays"):
        dtype = np.dtype(kind)
        data = _exactly(end, dtype.itemsize * int(np.prod(shape)))
        arrays.append(np.frombuffer(data, dtype=dtype).reshape(shape))
    return message, arrays


def _exactly(end: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        got = end.recv_into(view[have:])
        if not got:
            raise EOFError
        have += got
    return data
