"""Every release against the API schemas of Kubernetes, from the oldest version that the chart takes to the newest."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.support.helm_chart import CHART, RELEASES, needs_helm, release

kubernetes_validate = pytest.importorskip("kubernetes_validate.utils", reason="kubernetes-validate is not installed")
pytestmark = needs_helm
OLDEST = (1, 30)
# Of operators; no schema of Kubernetes describes them.
OTHERS = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject", "Certificate", "HTTPRoute", "GRPCRoute"}
IMAGE_VOLUMES_SINCE = (1, 33)  # by the chart's own check


def minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def has_image_volume(each: dict[str, Any]) -> bool:
    volumes = each.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", [])
    return any("image" in volume for volume in volumes)


VERSIONS = sorted({each for each in kubernetes_validate.all_versions() if minor(each) >= OLDEST}, key=minor)


@pytest.fixture(autouse=True, scope="module")
def read_schemas_once() -> Iterator[None]:
    """The package reads megabytes anew for each object."""
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(kubernetes_validate.schema_contents)
        patch.setattr(kubernetes_validate, "schema_contents", read)
        yield


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    """All objects of all releases, those that are alike once."""
    different = {json.dumps(each, sort_keys=True): each for name in RELEASES for each in release(name)}
    return [each for each in different.values() if each["kind"] not in OTHERS]


def test_the_versions_reach_from_the_chart_s_oldest_on() -> None:
    wanted = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert wanted == f">={OLDEST[0]}.{OLDEST[1]}.0-0"
    assert minor(VERSIONS[0]) == OLDEST
    assert minor(VERSIONS[-1]) >= (1, 36)


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_valid(version: str, objects: list[dict[str, Any]]) -> None:
    assert len(objects) > 50
    for each in objects:
        if minor(version) >= IMAGE_VOLUMES_SINCE or not has_image_volume(each):
            kubernetes_validate.validate(each, version, strict=True)


def test_an_object_with_an_unknown_key_would_be_noticed(objects: list[dict[str, Any]]) -> None:
    deployment = next(each for each in objects if each["kind"] == "Deployment")
    broken = json.loads(json.dumps(deployment))
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)
