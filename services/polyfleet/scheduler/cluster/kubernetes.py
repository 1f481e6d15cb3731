"""The replicas of Deployments in the pod's own namespace, by Kubernetes' API: their `scale` subresource and no more."""

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS = 5.0
MAX_ANSWER_BYTES = 1024 * 1024


class KubernetesError(RuntimeError):
    """The API did not do it. The message is one sentence."""


class Replicas:
    """Asks as the pod's service account, whose files are read at each call: tokens are renewed. Calls block."""

    def __init__(self, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> None:
        self._environ, self._account = environ, account

    def read(self, deployment: str) -> int:
        """How many are wished for. Raises KubernetesError."""
        return _replicas(self._call("GET", deployment))

    def write(self, deployment: str, replicas: int) -> int:
        """Wish for so many; how many are wished for now. Raises KubernetesError."""
        return _replicas(self._call("PATCH", deployment, {"spec": {"replicas": replicas}}))

    def _call(self, method: str, deployment: str, body: object = None) -> Any:
        address = self._address()
        try:
            namespace = (self._account / "namespace").read_text(encoding="utf-8").strip()
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            url = f"{address}/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}/scale"
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            if body is not None:
                headers["Content-Type"] = "application/merge-patch+json"
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(url, data, headers, method=method)
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
            )
            with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return json.loads(answer.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            raise KubernetesError(f"Kubernetes refused: {_message(error)}") from None
        except (OSError, ValueError) as error:  # the network, the account's files, or no JSON
            raise KubernetesError(f"Kubernetes did not answer: {error}.") from None

    def _address(self) -> str:
        host, port = self._environ.get("KUBERNETES_SERVICE_HOST"), self._environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise KubernetesError("KUBERNETES_SERVICE_HOST is not set: pools are scaled from inside a cluster only.")
        return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _replicas(scale: Any) -> int:
    """Of a Scale, which leaves 0 out."""
    try:
        return int(scale["spec"].get("replicas", 0))
    except (KeyError, TypeError, AttributeError, ValueError):
        raise KubernetesError("Kubernetes answered with something else than a Scale.") from None


def _message(error: urllib.error.HTTPError) -> str:
    """What its Status says, else the code."""
    try:
        return str(json.loads(error.read(MAX_ANSWER_BYTES))["message"])[:300]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
