"""Reflection under both of its names. The messages of v1 and v1alpha are the same on the wire."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

SERVICES = reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection"


class _Servicer(reflection.aio.ReflectionServicer):  # type: ignore[misc,name-defined]
    """Knows the files of methods, too, which a pool finds no file for: clients ask for whatever they describe."""

    def _file_containing_symbol(self, request: Any, fully_qualified_name: str) -> Any:
        with suppress(KeyError):
            method = descriptor_pool.Default().FindMethodByName(fully_qualified_name)
            fully_qualified_name = method.containing_service.full_name
        return super()._file_containing_symbol(request, fully_qualified_name)


def add_reflection(server: Any, names: Sequence[str]) -> None:
    """Have a server tell of these services and of reflection itself."""
    servicer = _Servicer((*names, *SERVICES))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods) for name in SERVICES])
