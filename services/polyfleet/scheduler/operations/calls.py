"""The calls of `Fleet` about devices, logs, requests, keys, options and, in a file of their own, benchmarks."""

import json
import logging
import math
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc
import msgspec

from polyfleet.process.channels import FleetAccess
from polyfleet.process.config import ConfigError
from polyfleet.process.key_changes import KeyAbsent, KeyTaken, create_key, limit_tenant, revoke_key
from polyfleet.process.keys import Key, KeysFile, Role, Tenant, read_keys
from polyfleet.scheduler.aborts import abort_invalid
from polyfleet.scheduler.fleet.devices import fleet_devices
from polyfleet.scheduler.launcher.worker_client import WorkerClient
from polyfleet.scheduler.operations.benchmark_calls import BenchmarkCalls
from polyfleet.scheduler.request_log import MAX_ENDED, RequestLog
from polyfleet.v1 import operations_pb2 as pb
from polyfleet.wire.limits import MAX_PRIORITY, FieldError
from polyfleet.wire.options import OPTIONS

MAX_LINES, USUAL_LINES = 1000, 100
GIVEN_ROLES = {"": Role.TENANT, "tenant": Role.TENANT, "operator": Role.OPERATOR}
log = logging.getLogger(__name__)


class OperationsCalls(BenchmarkCalls):
    """A part of FleetService."""

    _clock: Callable[[], float]
    _access: FleetAccess
    _keys_file: Path | None
    requests: RequestLog

    async def ListDevices(self, request: pb.ListDevicesRequest, context: Any) -> pb.ListDevicesResponse:
        """All that workers are on."""
        return pb.ListDevicesResponse(devices=fleet_devices(self._registry.devices, self._clock()))

    async def ListRequests(self, request: pb.ListRequestsRequest, context: Any) -> pb.ListRequestsResponse:
        """Those that gateways told of."""
        if request.limit > MAX_ENDED:
            await abort_invalid(context, FieldError("limit", f"must be at most {MAX_ENDED}, not {request.limit}"))
        return self.requests.listed(request.tenant, request.model, request.limit, self._clock())

    async def TailLog(self, request: pb.TailLogRequest, context: Any) -> pb.TailLogResponse:
        """Asked of the worker itself."""
        if request.lines > MAX_LINES:
            await abort_invalid(context, FieldError("lines", f"must be at most {MAX_LINES}, not {request.lines}"))
        record = self._registry.record(request.worker_id)
        if record is None or not record.info.address:
            known = "has not told its address yet" if record else "is not known"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Worker {request.worker_id!r:.80} {known}.")
            raise AssertionError("abort() raises")
        try:
            async with WorkerClient(record.info.address, self._access) as client:
                return await client.tail_log(request.lines or USUAL_LINES)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                problem = "is of a version that keeps no lines"
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"Worker {request.worker_id} {problem}.")
            reason = error.details() or error.code().name
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"Worker {request.worker_id} does not answer: {reason}")
            raise AssertionError("abort() raises") from None

    async def DescribeOptions(self, request: pb.DescribeOptionsRequest, context: Any) -> pb.DescribeOptionsResponse:
        """As they are declared."""
        properties = {each.name: {**each.schema(), "description": each.help} for each in OPTIONS.values()}
        schema = {"type": "object", "additionalProperties": False, "properties": properties}
        return pb.DescribeOptionsResponse(json_schema=json.dumps(schema))

    async def ListKeys(self, request: pb.ListKeysRequest, context: Any) -> pb.ListKeysResponse:
        """What the file says, without hashes."""
        path = await self._keys(context)
        try:
            found = read_keys(path)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise AssertionError("abort() raises") from None
        return pb.ListKeysResponse(keys=[_key_info(each) for each in found.keys], tenants=_tenants(found))

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Any) -> pb.CreateKeyResponse:
        """A new one; its secret is in the answer and nowhere else."""
        path, wanted = await self._keys(context), request.key
        secret = await self._changed(context, lambda: _create(path, wanted))
        log.info("A key was made.", extra={"key_id": wanted.id, "role": wanted.role or Role.TENANT.value})
        made = next(each for each in read_keys(path).keys if each.id == wanted.id)
        return pb.CreateKeyResponse(key=_key_info(made), secret=secret)

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Any) -> pb.RevokeKeyResponse:
        """Within a second no gateway takes it any more."""
        path = await self._keys(context)
        await self._changed(context, lambda: revoke_key(path, request.id))
        log.info("A key was revoked.", extra={"key_id": request.id})
        return pb.RevokeKeyResponse()

    async def LimitTenant(self, request: pb.LimitTenantRequest, context: Any) -> pb.LimitTenantResponse:
        """What is given changes."""
        path, wanted = await self._keys(context), request.limits
        tenant = await self._changed(context, lambda: _limit(path, wanted))
        log.info("A tenant's limits were changed.", extra={"tenant": wanted.tenant})
        return pb.LimitTenantResponse(limits=_limits(tenant))

    async def _keys(self, context: Any) -> Path:
        if self._keys_file is None:
            problem = "The scheduler has no keys file: name the gateways' with keys_file."
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
            raise AssertionError("abort() raises")
        return self._keys_file

    async def _changed(self, context: Any, change: Callable[[], Any]) -> Any:
        """What the change gives; a call that can't be followed is ended."""
        try:
            return change()
        except FieldError as error:
            await abort_invalid(context, error)
        except KeyTaken as error:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
        except KeyAbsent as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except ConfigError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError("abort() raises")


def _create(path: Path, wanted: pb.KeyInfo) -> str:
    if (role := GIVEN_ROLES.get(wanted.role)) is None:
        raise FieldError("key.role", f"must be tenant or operator, not {wanted.role!r:.40}")
    expires = wanted.expires_unix_seconds
    if expires and expires <= time.time():
        raise FieldError("key.expires_unix_seconds", f"must be to come, or 0 for never, not {expires}")
    try:
        at = datetime.fromtimestamp(expires, timezone.utc) if expires else None
    except (ValueError, OverflowError, OSError):
        raise FieldError("key.expires_unix_seconds", f"must be a time before the year 10,000, not {expires}") from None
    try:
        highest = wanted.max_priority if wanted.HasField("max_priority") else MAX_PRIORITY
        return create_key(path, wanted.id, role, wanted.tenant, max_priority=highest, expires=at)
    except FieldError as error:
        raise error.on(f"key.{error.field}") from None


def _limit(path: Path, wanted: pb.TenantLimits) -> Tenant:
    given: dict[str, Any] = {
        "weight": wanted.weight if wanted.HasField("weight") else None,
        "tokens_per_minute": wanted.tokens_per_minute if wanted.HasField("tokens_per_minute") else None,
        "max_concurrent": wanted.max_concurrent if wanted.HasField("max_concurrent") else None,
    }
    try:
        msgspec.convert(
            {"id": wanted.tenant} | {name: value for name, value in given.items() if value is not None}, Tenant
        )
    except msgspec.ValidationError as error:
        raise FieldError("limits", str(error)) from None
    if not math.isfinite(wanted.weight):
        raise FieldError("limits.weight", "must be a number")
    return limit_tenant(path, wanted.tenant, **given)


def _key_info(key: Key) -> pb.KeyInfo:
    expires = int(key.expires.timestamp()) if key.expires else 0
    return pb.KeyInfo(
        id=key.id,
        role=key.role.value,
        tenant=key.owner,
        max_priority=key.max_priority,
        expires_unix_seconds=expires,
    )


def _tenants(file: KeysFile) -> list[pb.TenantLimits]:
    return [_limits(file.by_tenant.get(each, Tenant(each))) for each in sorted(file.owners)]


def _limits(tenant: Tenant) -> pb.TenantLimits:
    return pb.TenantLimits(
        tenant=tenant.id,
        weight=tenant.weight,
        tokens_per_minute=tenant.tokens_per_minute,
        max_concurrent=tenant.max_concurrent,
    )
