"""Messages as the previous version knows them, from the descriptors of its .proto files in `tests/data`.

They live in a pool of their own, so that both versions are in one process. At a release this version takes its place:

    python -m tests.support.previous_protos
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from polyfleet.v1 import fleet_pb2, inference_pb2, worker_pb2

PREVIOUS = Path(__file__).parent.parent / "data" / "previous_protos.txtpb"
FILES = (fleet_pb2.DESCRIPTOR, inference_pb2.DESCRIPTOR, worker_pb2.DESCRIPTOR)  # before those that import them
MessageT = TypeVar("MessageT", bound=Message)


@lru_cache
def previous_files() -> FileDescriptorSet:
    """Its files."""
    return text_format.Parse(PREVIOUS.read_text(), FileDescriptorSet())


@lru_cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in previous_files().file:
        pool.Add(file)
    return pool


@lru_cache
def previous(name: str) -> Any:
    """Its class of the message `polyfleet.v1.<name>`."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"polyfleet.v1.{name}"))


def as_previous(message: MessageT) -> MessageT:
    """What a peer of the previous version reads of this message, or would have sent in its stead."""
    known = previous(message.DESCRIPTOR.name).FromString(message.SerializeToString())
    known.DiscardUnknownFields()
    return type(message).FromString(known.SerializeToString())


def write() -> None:
    """Make this version the previous one."""
    files = FileDescriptorSet()
    for file in FILES:
        file.CopyToProto(files.file.add())
    PREVIOUS.write_text(text_format.MessageToString(files))


if __name__ == "__main__":
    write()
