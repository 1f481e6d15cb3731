"""A stand-in for a Kubernetes API server: enough of its discovery, and its Secrets, for helm to render against it."""

import json
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAMESPACE = "llm"
GROUPS = {
    "v1": {"ConfigMap": "configmaps", "Secret": "secrets", "Service": "services", "ServiceAccount": "serviceaccounts"}
    | {"PersistentVolumeClaim": "persistentvolumeclaims", "Pod": "pods"},
    "apps/v1": {"Deployment": "deployments", "DaemonSet": "daemonsets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "storage.k8s.io/v1": {"StorageClass": "storageclasses"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
}
Documents = dict[str, dict[str, Any]]


def discovery() -> Documents:
    """What the server says of its APIs, by path."""
    groups = [version for version in GROUPS if "/" in version]
    documents: Documents = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {
                    "name": version.partition("/")[0],
                    "versions": [{"groupVersion": version, "version": version.partition("/")[2]}],
                    "preferredVersion": {"groupVersion": version, "version": version.partition("/")[2]},
                }
                for version in groups
            ],
        },
    }
    for version, kinds in GROUPS.items():
        resources = [
            {"name": name, "kind": kind, "namespaced": kind != "StorageClass", "verbs": ["get"]}
            for kind, name in kinds.items()
        ]
        listed = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        documents[f"/apis/{version}" if "/" in version else f"/api/{version}"] = listed
    return documents


def stored(kind: str, name: str, **content: Any) -> Documents:
    """One object, in NAMESPACE unless it is the cluster's, by its path."""
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {"app.kubernetes.io/managed-by": "Helm"},  # else helm takes it for somebody else's
        "annotations": {"meta.helm.sh/release-name": "polyfleet", "meta.helm.sh/release-namespace": NAMESPACE},
    }
    (version,) = (version for version, kinds in GROUPS.items() if kind in kinds)
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    place = "" if kind == "StorageClass" else f"/namespaces/{NAMESPACE}"
    path = f"{root}{place}/{GROUPS[version][kind]}/{name}"
    return {path: {"kind": kind, "apiVersion": version, "metadata": metadata, **content}}


def encoded(data: Mapping[str, str]) -> dict[str, str]:
    """A Secret's data."""
    return {key: b64encode(value.encode()).decode() for key, value in data.items()}


@contextmanager
def kube_api(secrets: Mapping[str, Mapping[str, str]], *objects: Documents) -> Iterator[str]:
    """Address of a server with these Secrets in NAMESPACE, and what else `stored` made."""
    documents = discovery() | stored("ConfigMap", "kube-root-ca.crt", data={})
    for name, data in secrets.items():
        documents |= stored("Secret", name, data=encoded(data))
    for each in objects:
        documents |= each

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = documents.get(self.path.partition("?")[0])
            absent = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found or absent).encode()
            self.send_response(200 if found else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
