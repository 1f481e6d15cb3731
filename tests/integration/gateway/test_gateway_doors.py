"""Keys, TLS, health, reflection, HTTP beside gRPC."""

import asyncio
import hashlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import GatewayRig, Stream, failure_of, text_worker, until
from tests.support.text_assets import assets_document
from tests.support.tls_files import write_tls_files

from polyfleet.process import keys as process_keys
from polyfleet.v1 import fleet_pb2, worker_pb2
from polyfleet.v1 import inference_pb2 as pb

REQUEST = pb.GenerateRequest(token_ids=[4, 5], max_tokens=2)
SYMBOLS = (
    *("polyfleet.v1.Inference", "polyfleet.v1.Inference.Generate", "polyfleet.v1.GenerateRequest"),
    *("polyfleet.v1.GenerateRequest.model", "polyfleet.v1.FinishReason", "polyfleet.v1.FINISH_REASON_STOP"),
)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class GuardedWorker(FakeWorker):
    """Notes what sessions present."""

    tokens_seen: ClassVar[list[str]] = []

    async def Session(self, requests: Any, context: Any) -> AsyncIterator[worker_pb2.SessionEvent]:
        self.tokens_seen.append(dict(context.invocation_metadata()).get("authorization", ""))
        async for event in super().Session(requests, context):
            yield event


def write_keys(path: Path, *secrets: str) -> Path:
    hashes = [hashlib.sha256(secret.encode()).hexdigest() for secret in secrets]
    path.write_text(yaml.safe_dump({"keys": [{"id": f"key-{i}", "hash": h} for i, h in enumerate(hashes)]}))
    return path


def bearer(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


def http(url: str, secret: str = "", context: ssl.SSLContext | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {secret}"} if secret else {})
    try:
        with urllib.request.urlopen(request, context=context) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def test_keys_are_asked_for_over_both_protocols(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.yaml", "secret-a", "secret-b")
    async with GatewayRig(config={"keys_file": str(keys)}) as rig:
        await rig.add(text_worker("w-1"))
        for metadata in (None, bearer("wrong"), bearer(""), (("authorization", "secret-a"),)):
            for call in (
                rig.stub.Generate(REQUEST, metadata=metadata),
                rig.stub.ListModels(pb.ListModelsRequest(), metadata=metadata),
            ):
                assert (await failure_of(call)).code is grpc.StatusCode.UNAUTHENTICATED
        for secret in ("secret-a", "secret-b"):
            assert (await Stream.read(rig.stub.Generate(REQUEST, metadata=bearer(secret)))).ids()
        models = f"{rig.http}/v1/models"
        assert (await asyncio.to_thread(http, models))[0] == 401
        assert (await asyncio.to_thread(http, models, "wrong"))[0] == 401
        assert (await asyncio.to_thread(http, models, "secret-b"))[0] == 200
        unauthenticated = rig.gateway.metrics.registry.get_sample_value(
            "polyfleet_requests_total", {"model": "", "method": "Generate", "code": "UNAUTHENTICATED"}
        )
        assert unauthenticated == 4


async def test_each_tenant_has_prefixes_of_its_own(tmp_path: Path) -> None:
    secrets = {"a": "", "b": "", "a-too": "a"}
    keys = tmp_path / "keys.yaml"
    entries = [
        {"id": name, "hash": hashlib.sha256(name.encode()).hexdigest(), "tenant": tenant}
        for name, tenant in secrets.items()
    ]
    keys.write_text(yaml.safe_dump({"keys": entries}))
    first, second = text_worker("w-1", token_seconds=0.002), text_worker("w-2")
    async with GatewayRig(config={"keys_file": str(keys)}) as rig:
        await rig.add(first)
        request = pb.GenerateRequest(token_ids=[4, 5], max_tokens=3)
        for name in secrets:
            await Stream.read(rig.stub.Generate(request, metadata=bearer(name)))
            body = json.dumps({"prompt": [4, 5], "max_tokens": 3}).encode()
            headers = {"content-type": "application/json", **dict(bearer(name))}
            completion = urllib.request.Request(f"{rig.http}/v1/completions", body, headers)
            with await asyncio.to_thread(urllib.request.urlopen, completion) as reply:
                assert reply.status == 200
        salts = [start.cache_salt for start in first.started]
        long = pb.GenerateRequest(token_ids=[4, 5], max_tokens=200)
        reading = asyncio.create_task(Stream.read(rig.stub.Generate(long, metadata=bearer("b"))))
        await until(lambda: any(each.generated > 20 for each in first.sequences.values()))
        await rig.add(second)
        await first.kill()
        assert (await reading).workers() == ["w-1", "w-2"]
    assert salts[0] == salts[1] == salts[4] == salts[5]
    assert salts[2] == salts[3]
    assert len({b"", salts[0], salts[2]}) == 3
    assert second.started[0].cache_salt == salts[2]
    assert b"a" not in (salts[0], salts[2])


async def test_a_changed_keys_file_counts_at_once_and_a_broken_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_keys, "RELOAD_SECONDS", 0.0)
    keys = write_keys(tmp_path / "keys.yaml", "secret-old")
    async with GatewayRig(config={"keys_file": str(keys)}) as rig:
        await rig.add(text_worker("w-1"))
        write_keys(keys, "secret-new", "secret-newer")
        assert (await Stream.read(rig.stub.Generate(REQUEST, metadata=bearer("secret-new")))).ids()
        old = await failure_of(rig.stub.Generate(REQUEST, metadata=bearer("secret-old")))
        assert old.code is grpc.StatusCode.UNAUTHENTICATED
        keys.write_text("keys: [{id: broken")
        assert (await Stream.read(rig.stub.Generate(REQUEST, metadata=bearer("secret-new")))).ids()


async def served_over_tls(rig: GatewayRig, root: bytes) -> None:
    """Assert that both ports serve under the certificate `root`."""
    credentials = grpc.ssl_channel_credentials(root)
    async with grpc.aio.secure_channel(f"localhost:{rig.gateway.grpc.port}", credentials) as channel:
        assert (await Stream.read(type(rig.stub)(channel).Generate(REQUEST))).ids()
    context = ssl.create_default_context(cadata=root.decode())
    url = f"https://localhost:{rig.gateway.http.port}/v1/models"
    status, body = await asyncio.to_thread(http, url, "", context)
    assert (status, json.loads(body)["data"][0]["id"]) == (200, "fake")


async def test_tls_on_both_ports_also_after_a_renewal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.gateway.server.CERTIFICATE_SECONDS", 0.01)
    certificate, key = write_tls_files(tmp_path, timedelta(days=1))
    config = {"tls_cert": str(certificate), "tls_key": str(key)}
    async with GatewayRig(config=config) as rig:
        await rig.add(text_worker("w-1"))
        await served_over_tls(rig, certificate.read_bytes())
        assert (await failure_of(rig.stub.Generate(REQUEST))).code is grpc.StatusCode.UNAVAILABLE  # plaintext

        def days_left() -> float:
            name = "polyfleet_tls_certificate_expiry_timestamp_seconds"
            end = rig.gateway.metrics.registry.get_sample_value(name)
            assert end is not None
            return (end - time.time()) / 86400

        assert days_left() == pytest.approx(1, abs=0.1)
        write_tls_files(tmp_path, timedelta(days=90))
        await until(lambda: days_left() > 89)
        await served_over_tls(rig, certificate.read_bytes())


async def test_health_follows_the_workers_and_the_draining() -> None:
    async with GatewayRig() as rig, rig.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(service: str = "") -> int:
            return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)

        assert await status() == NOT_SERVING
        worker = text_worker("w-1")
        await rig.add(worker)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="polyfleet.v1.Inference"))
        while (await watch.read()).status != SERVING:
            pass
        assert await status() == await status("polyfleet.v1.Inference") == SERVING
        assert (await asyncio.to_thread(http, f"{rig.http}/readyz"))[0] == 200
        worker.set_state(fleet_pb2.WORKER_STATE_UNHEALTHY, "canary")
        assert (await watch.read()).status == NOT_SERVING
        assert (await asyncio.to_thread(http, f"{rig.http}/readyz"))[0] == 503
        worker.set_state(fleet_pb2.WORKER_STATE_READY)
        assert (await watch.read()).status == SERVING
        draining = asyncio.create_task(rig.gateway.drain())
        assert (await watch.read()).status == NOT_SERVING
        await draining
        failure = await failure_of(rig.stub.Generate(REQUEST))
        assert failure.code is grpc.StatusCode.UNAVAILABLE
        assert failure.retry_seconds
        watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_describes_the_service(version: str) -> None:
    async with GatewayRig() as rig, rig.channel() as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = [service.name for service in (await call.read()).list_services_response.service]
        assert "polyfleet.v1.Inference" in names
        assert "grpc.health.v1.Health" in names
        for symbol in SYMBOLS:
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
            files = (await call.read()).file_descriptor_response.file_descriptor_proto
            assert any(b"GenerateRequest" in each for each in files), symbol
        for symbol in ("polyfleet.v1.Inference.Nothing", "polyfleet.v1", ""):
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
            assert (await call.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0], symbol
        await call.done_writing()


async def test_running_requests_finish_while_draining_and_the_rest_is_told() -> None:
    worker = text_worker("w-1", token_seconds=0.01)
    async with GatewayRig(drain_seconds=2.0) as rig:
        await rig.add(worker)
        short = asyncio.create_task(Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=[1], max_tokens=20))))
        long = asyncio.create_task(failure_of(rig.stub.Generate(pb.GenerateRequest(token_ids=[2], max_tokens=1900))))
        await until(lambda: len(worker.sequences) == 2)
        await rig.gateway.drain()
        assert len((await short).ids()) == 20
        await rig.gateway.stop()
        failure = await long
        assert failure.code is grpc.StatusCode.UNAVAILABLE
        assert failure.retry_seconds
        assert rig.gateway.ledger.running == 0


async def test_metrics_are_those_of_the_architecture() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        await Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=[4, 5, 6], max_tokens=7, n=2)))
        await failure_of(rig.stub.Generate(pb.GenerateRequest(model="no")))
        value = rig.gateway.metrics.registry.get_sample_value
        model = {"model": "fake"}
        assert value("polyfleet_requests_total", {**model, "method": "Generate", "code": "OK"}) == 1
        failed = {"model": "", "method": "Generate", "code": "INVALID_ARGUMENT"}
        assert value("polyfleet_requests_total", failed) == 1
        assert value("polyfleet_prompt_tokens_total", model) == 3
        assert value("polyfleet_generation_tokens_total", model) == 14
        assert value("polyfleet_cached_prompt_tokens_total", model) == 0
        assert value("polyfleet_requests_inflight", model) == 0
        assert value("polyfleet_placements_total", {"worker_id": "w-1", "reason": "start"}) == 2
        assert (value("polyfleet_placement_seconds_count") or 0) >= 2
        assert value("polyfleet_sessions", {"state": "connected"}) == 1
        assert value("polyfleet_sessions", {"state": "connecting"}) == 0
        assert value("polyfleet_scheduler_connected") == 1
        assert value("polyfleet_slo_requests_total", {**model, "result": "good"}) == 1
        assert value("polyfleet_key_generation_tokens_total", {"key_id": ""}) == 14
        assert value("polyfleet_tls_certificate_expiry_timestamp_seconds") is None
        for state, count in {"admitted": 2, "finished": 1, "failed": 1, "cancelled": 0, "running": 0}.items():
            assert value("polyfleet_ledger_requests", {"state": state}) == count
        for name in ("queue_time", "time_to_first_token", "request_duration"):
            assert value(f"polyfleet_{name}_seconds_count", model) == 1
        assert value("polyfleet_time_per_output_token_seconds_count", model) == 2  # of each choice
        _, text = await asyncio.to_thread(http, f"{rig.metrics}/metrics")
        assert b'polyfleet_requests_total{code="OK",method="Generate",model="fake"} 1.0' in text
        await rig.fleet.stop()
        await until(lambda: value("polyfleet_scheduler_connected") == 0)
        await rig.fleet.start()
        await until(lambda: value("polyfleet_scheduler_connected") == 1)


async def test_the_fleet_token_is_presented_to_fleet_and_workers(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("fleet-secret\n")
    worker = GuardedWorker("w-1", assets=assets_document())
    async with GatewayRig(config={"fleet_token_file": str(tmp_path / "token")}) as rig:
        await rig.add(worker)
        await Stream.read(rig.stub.Generate(REQUEST))
        assert set(rig.fleet.tokens) == {"Bearer fleet-secret"}
        assert len(rig.fleet.tokens) == 2  # WatchFleet and GetTokenizer
    assert worker.tokens_seen == ["Bearer fleet-secret"]
