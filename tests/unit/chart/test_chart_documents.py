"""The chart's own files: lint, sizes, versions, and documents that must not fall behind."""

import importlib.util
import re
from types import ModuleType

import pytest
import yaml
from tests.support.helm_chart import CHART, EXAMPLES, ROOT, helm, needs_helm

from polyfleet.scheduler.config import ACCELERATORS
from polyfleet.wire.limits import ACCELERATOR

WITHOUT_CONTAINERS = {"mps", "vulkan"}  # no Linux container reaches Metal; vulkan is experimental


RESOURCES = """
nvidia.com/gpu.shared nvidia.com/mig-1g.5gb nvidia.com/gpumem amd.com/cpx_nps4 gpu.intel.com/i915 huawei.com/npu
huawei.com/Ascend310P huawei.com/Ascend910B4-1 huawei.com/Ascend910-4c huawei.com/Ascend910B3-memory
cambricon.com/mlu370 cambricon.com/mlu.smlu.vcore cambricon.com/vmlu
hygon.com/hcu hygon.com/dcunum hygon.com/hcu-share-4c-16g
"""


def tool(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def chart_readme() -> ModuleType:
    return tool("chart_readme")


@needs_helm
def test_helm_lint_is_strict_and_content() -> None:
    status, output, errors = helm("--strict", verb="lint")
    assert status == 0, output + errors


def test_values_can_be_read_in_one_go() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    undocumented = [line for line in text.splitlines() if re.match(r"^[a-z]\w*: *\S", line) and "#" not in line]
    assert undocumented  # top-level keys; each has its comment above
    lines = text.splitlines()
    assert all(lines[lines.index(line) - 1].startswith("#") for line in undocumented)


def test_templates_are_small() -> None:
    longest = {path.name: len(path.read_text().splitlines()) for path in (CHART / "templates").rglob("*.*")}
    assert max(longest.values()) <= 150, longest


def test_the_chart_has_polyfleet_s_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert chart["appVersion"] == chart["version"] == found[1]


def test_the_readme_is_up_to_date(chart_readme: ModuleType) -> None:
    assert (CHART / "README.md").read_text(encoding="utf-8") == chart_readme.readme(CHART)


def test_the_readme_s_table_has_every_value(chart_readme: ModuleType) -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    found = {value.path: value for value in chart_readme.values_of(text.partition("\n\n")[2])}
    values = yaml.safe_load(text)
    assert values.keys() == {path.partition(".")[0] for path in found}
    assert found["gateway.resources.limits"].default == "{memory: 1Gi}"
    assert found["auth.enabled"].text == "false: anybody who reaches it."
    assert set(yaml.safe_load("\n".join(found["workers"].sample))["workers"]) == {"nvidia"}


def test_template_and_scheduler_know_the_same_accelerators_and_the_schema_takes_others(
    chart_readme: ModuleType,
) -> None:
    table = chart_readme.accelerators((CHART / "templates" / "_accelerators.tpl").read_text(encoding="utf-8"))
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["definitions"]
    assert schema["accelerator"]["pattern"] == f"^{ACCELERATOR.pattern}$"
    assert set(schema["accelerator"]["not"]["enum"]) == WITHOUT_CONTAINERS | {"auto"}
    assert table.keys() == set(ACCELERATORS) - WITHOUT_CONTAINERS
    for each in table.values():
        if "resource" in each:
            assert re.fullmatch(each["resources"].strip("^$"), each["resource"])


@pytest.mark.parametrize("name", RESOURCES.split())
def test_every_documented_resource_name_is_one_accelerator_s(chart_readme: ModuleType, name: str) -> None:
    table = chart_readme.accelerators((CHART / "templates" / "_accelerators.tpl").read_text(encoding="utf-8"))
    takes = [accelerator for accelerator, each in table.items() if re.match(each.get("resources", "$^"), name)]
    assert len(takes) == 1


def test_there_is_an_example_for_each_kind_of_site() -> None:
    assert EXAMPLES.keys() == {
        *("kind", "nvidia", "mixed", "domestic", "air-gapped", "high-availability", "prefill-apart"),
    }
    for path in EXAMPLES.values():
        assert path.read_text(encoding="utf-8").startswith("# ")


@needs_helm
def test_notes_say_how_to_get_images_and_an_answer() -> None:
    status, output, errors = helm("--dry-run=client", verb="install")
    assert status == 0, errors
    notes = output.partition("NOTES:")[2]
    assert 'make images REGISTRY=localhost IMAGES="gateway scheduler worker-cpu"\n' in notes
    assert "helm --namespace llm test polyfleet --logs" in notes
    assert "jsonpath='{.data.api-key}'" in notes
    assert "WARNING" not in notes
