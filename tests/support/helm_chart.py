"""The chart, rendered by helm and read back as YAML. Each rendering is made once per test run."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "polyfleet"
EXAMPLES = {path.stem: path for path in sorted((ROOT / "deploy" / "examples").glob("*.yaml"))}
OPERATOR_APIS = ("monitoring.coreos.com/v1", "cert-manager.io/v1", "gateway.networking.k8s.io/v1", "keda.sh/v1alpha1")
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
NO_HELM = "helm is not installed: tools/get_helm.py gets it on Linux x86-64"
needs_helm = pytest.mark.skipif(HELM is None, reason=NO_HELM)
Object = dict[str, Any]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def helm(*arguments: str, values: Any = None, chart: Path = CHART, verb: str = "template") -> "tuple[int, str, str]":
    """Exit status, output and errors of helm on the chart with these values."""
    assert HELM is not None
    command = [HELM, verb, *(() if verb == "lint" else ("polyfleet",)), str(chart), "--namespace", "llm", *arguments]
    text = json.dumps(values or {})  # JSON is YAML without surprises
    done = subprocess.run([*command, "--values", "-"], input=text, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def rendered(*arguments: str, values: Any = None, chart: Path = CHART) -> list[Object]:
    """All objects of the release."""
    status, output, errors = helm(*arguments, values=values, chart=chart)
    assert status == 0, errors
    return [each for each in yaml.load_all(output, _LOADER) if each]


def refusal(values: Any, *arguments: str) -> str:
    """What helm says when it refuses these values."""
    status, output, errors = helm(*arguments, values=values)
    assert status != 0, "helm accepted the values"
    assert not output
    return errors


@functools.cache
def release(name: str) -> list[Object]:
    """The objects of an example, or of no values at all. Not to be changed."""
    if name == "defaults":
        return rendered()
    apis = [word for api in OPERATOR_APIS for word in ("--api-versions", api)]
    return rendered("--values", str(EXAMPLES[name]), *apis)


RELEASES = ("defaults", *EXAMPLES)


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Those of these kinds."""
    return [each for each in objects if each["kind"] in kinds]


def find(objects: list[Object], kind: str, name: str) -> Object:
    """The one of this kind and name."""
    (found,) = (each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)
    return found


def pod_of(workload: Object) -> Object:
    """The pod's spec in a Deployment, DaemonSet or Pod."""
    spec: Object = workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]
    return spec


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name and pod's spec of everything that makes pods."""
    for each in of_kind(objects, "Deployment", "DaemonSet", "Pod"):
        yield each["metadata"]["name"], pod_of(each)


def containers(pod: Object) -> list[Object]:
    """All containers, those of the start included."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def container(pod: Object, name: str) -> Object:
    """The container of this name."""
    (found,) = (each for each in containers(pod) if each["name"] == name)
    return found
