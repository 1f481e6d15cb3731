"""Pools that the scheduler scales, against an API server that answers as Kubernetes does."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.launch_records import record
from tests.support.tls_files import write_tls_files

from polyfleet.process.within import Within
from polyfleet.scheduler.cluster.kubernetes import KubernetesError, Replicas
from polyfleet.scheduler.config import AutoscalingConfig, PoolConfig, SchedulerConfig, pool_wishes
from polyfleet.scheduler.deployments.pools import READ_SECONDS, PoolScaler
from polyfleet.scheduler.fleet.demand import Demand
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.v1 import fleet_pb2 as pb

PATH = "/apis/apps/v1/namespaces/llm/deployments/polyfleet-worker-a/scale"


class Api:
    """One Deployment's scale. `answer`, where set, is what every call gets instead."""

    def __init__(self, folder: Path) -> None:
        self.replicas = 2
        self.calls: list[tuple[str, str, Any]] = []
        self.answer: tuple[int, bytes] | None = None
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(None)

            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                assert self.headers["content-type"] == "application/merge-patch+json"
                api.replicas = body["spec"]["replicas"]
                self._reply(body)

            def _reply(self, body: Any) -> None:
                api.calls.append((self.command, self.headers["authorization"], body))
                scale = {"kind": "Scale", "spec": {"replicas": api.replicas} if api.replicas else {}}
                code, text = api.answer or (200, json.dumps(scale).encode())
                self.send_response(code if self.path == PATH else 404)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        certificate, key = write_tls_files(folder)
        certificate.rename(folder / "ca.crt")
        (folder / "namespace").write_text("llm")
        (folder / "token").write_text("first\n")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.server.server_port)}
        self.client = Replicas(where, folder)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    one = Api(tmp_path)
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_replicas_are_read_and_written_with_a_token_that_is_renewed(api: Api, tmp_path: Path) -> None:
    assert api.client.read("polyfleet-worker-a") == 2
    (tmp_path / "token").write_text("second")
    assert api.client.write("polyfleet-worker-a", 0) == 0
    assert api.client.read("polyfleet-worker-a") == 0
    assert [(method, token) for method, token, _ in api.calls] == [
        ("GET", "Bearer first"),
        ("PATCH", "Bearer second"),
        ("GET", "Bearer second"),
    ]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((403, b'{"message": "deployments.apps is forbidden"}'), "Kubernetes refused: deployments.apps is forbidden"),
        ((500, b"<html>"), "Kubernetes refused: 500 Internal Server Error"),
        ((200, b"{}"), "Kubernetes answered with something else than a Scale."),
        ((200, b"[1]"), "Kubernetes answered with something else than a Scale."),
        ((200, b"<html>"), "Kubernetes did not answer: Expecting value"),
    ],
)
def test_what_goes_wrong_is_told_in_a_sentence(api: Api, answer: tuple[int, bytes], problem: str) -> None:
    api.answer = answer
    with pytest.raises(KubernetesError, match=problem):
        api.client.read("polyfleet-worker-a")


def test_an_unknown_certificate_and_no_cluster_are_refused(api: Api, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_tls_files(tmp_path / "other")[0].rename(tmp_path / "ca.crt")
    with pytest.raises(KubernetesError, match="certificate verify failed"):
        api.client.read("polyfleet-worker-a")
    assert api.calls == []
    with pytest.raises(KubernetesError, match="KUBERNETES_SERVICE_HOST is not set"):
        Replicas({}).read("polyfleet-worker-a")


class Rig:
    """A scaler of one pool over a registry and a clock of the test's."""

    def __init__(self, api: Api, **aims: Any) -> None:
        pool = PoolConfig("m", "cpu", 0, AutoscalingConfig(**aims), "polyfleet-worker-a")
        self.api, self.now, self.demand = api, 0.0, Demand()
        self.registry = Registry("e", pool_wishes(SchedulerConfig(pools={"a": pool})))
        pools = {"a": pool, "other": PoolConfig("n", "cpu")}
        self.scaler = PoolScaler(pools, api.client, self.registry, self.demand, lambda: self.now)

    async def at(self, now: float, queued: int = 0) -> tuple[int, str]:
        """The pool's workers and problem, as gateways are told of them."""
        self.now = now
        waiting = pb.ModelDemand(model="m", queued=queued)
        self.demand.report(pb.ReportUsageRequest(gateway_id="gw", models=[waiting]), now)
        await self.scaler.look("a")
        self.registry.sweep(now)
        (pool,) = self.registry.snapshot().pools
        return pool.workers, pool.problem


async def test_a_pool_goes_to_none_and_comes_back_for_who_waits(api: Api) -> None:
    rig = Rig(api, min_workers=0, max_workers=3, idle_seconds=60.0)
    assert await rig.at(0) == (2, "")
    assert await rig.at(61) == (0, "")
    assert api.replicas == 0
    assert await rig.at(62, queued=3) == (1, "")
    assert api.replicas == 1


async def test_what_others_made_of_the_replicas_is_seen_and_held_within_the_bounds(api: Api) -> None:
    rig = Rig(api, min_workers=1, max_workers=3)
    assert await rig.at(0) == (2, "")
    api.replicas = 9
    assert await rig.at(1) == (2, "")
    assert await rig.at(READ_SECONDS) == (3, "")
    assert api.replicas == 3


async def test_a_refusal_is_shown_and_ends_with_the_next_answer(api: Api) -> None:
    rig = Rig(api, min_workers=3, max_workers=3)
    api.answer = (403, b'{"message": "it is forbidden"}')
    assert await rig.at(0) == (0, "Pool a can't be scaled. Kubernetes refused: it is forbidden")
    api.answer = None
    assert await rig.at(1) == (3, "")
    api.answer = (403, b'{"message": "it is forbidden"}')
    assert await rig.at(20) == (3, "Pool a can't be scaled. Kubernetes refused: it is forbidden")
    api.answer = None
    assert await rig.at(21) == (3, "")


async def test_full_workers_of_the_pool_ask_for_more(api: Api) -> None:
    rig = Rig(api, min_workers=1, max_workers=8, kv_use=0.5)
    for name in ("w-1", "w-2"):
        found = record(name, deployment="a")
        found.info.model.max_sequences, found.status.running_sequences = 4, 4
        rig.registry.register(found.info, 1, 0.0)
        rig.registry.report(name, found.status, 1, 0.0)
    assert await rig.at(1) == (4, "")


async def test_a_scaler_without_pools_ends_at_once(api: Api) -> None:
    with Within(10):
        await PoolScaler({}, api.client, Registry("e"), Demand()).run()
