"""Write the tables of charts/polyfleet/README.md: values from values.yaml's comments, accelerators from the template.

What lies between `<!-- NAME -->` and `<!-- /NAME -->` in the README is made anew; the rest is written by hand.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent.parent / "charts" / "polyfleet"
KEY = re.compile(r"^( *)([A-Za-z]\w*):(?: +(.*))?$")


@dataclass
class Value:
    """One key of values.yaml: its dotted path, default as written, and the comment above it."""

    path: str
    default: str
    comment: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The comment as one line, without what is indented in it."""
        return " ".join(line.strip() for line in self.comment if line.strip() and not line.startswith("  "))

    @property
    def sample(self) -> list[str]:
        """The indented parts of the comment, as lines of YAML."""
        first = next((index for index, line in enumerate(self.comment) if line.startswith("  ")), None)
        if first is None:
            return []
        lines = [line if line.startswith("  ") or not line else f"  # {line.strip()}" for line in self.comment[first:]]
        return [line[2:] for line in lines]


def values_of(text: str) -> Iterator[Value]:
    """All keys that have a default or a comment, in order. The file's own first comment belongs to none."""
    parents: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped[1:].removeprefix(" "))
        elif found := KEY.match(line):
            indent, key, default = len(found[1]), found[2], (found[3] or "").strip()
            parents = [each for each in parents if each[0] < indent]
            path = ".".join([name for _, name in parents] + [key])
            parents.append((indent, key))
            if default or comment:
                yield Value(path, default, comment)
            comment = []
        else:
            comment = []


def cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def values_table(text: str) -> str:
    """Key, default and meaning of each value, then the samples."""
    lines = ["| value | default | meaning |", "| --- | --- | --- |"]
    samples = []
    for value in values_of(text):
        default = f"`{cell(value.default)}`" if value.default else ""
        lines.append(f"| `{value.path}` | {default} | {cell(value.text)} |")
        if value.sample:
            samples += ["", f"A sample of `{value.path}`:", "", "```yaml", *value.sample, "```"]
    return "\n".join(lines + samples)


def accelerators(text: str) -> dict[str, dict[str, Any]]:
    """The table of the template `polyfleet.accelerators`."""
    found = re.search(r'define "polyfleet\.accelerators" -}}\n(.*?)\{\{- end', text, re.DOTALL)
    assert found is not None
    table: dict[str, dict[str, Any]] = yaml.safe_load(found[1])
    return table


def accelerators_table(text: str) -> str:
    """What a pool of each accelerator has unless it says otherwise."""
    lines = [
        "| accelerator | image | resource | runtime class | environment | groups | mounts of the node |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in accelerators(text).items():
        cells = [
            name,
            f"worker-{name}",
            each.get("resource", ""),
            each.get("runtimeClassName", ""),
            " ".join(f"{key}={value}" for key, value in each.get("env", {}).items()),
            ", ".join(map(str, each.get("supplementalGroups", []))),
            ", ".join(each.get("hostMounts", [])),
        ]
        lines.append("| " + " | ".join(f"`{each}`" if each else "" for each in cells) + " |")
    return "\n".join(lines)


def replaced(readme: str, name: str, content: str) -> str:
    """The README with this part made anew."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = readme.split(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"


def readme(chart: Path) -> str:
    """What README.md should be."""
    text = (chart / "README.md").read_text(encoding="utf-8")
    values = (chart / "values.yaml").read_text(encoding="utf-8")
    table = (chart / "templates" / "_accelerators.tpl").read_text(encoding="utf-8")
    return replaced(
        replaced(text, "values", values_table(values.partition("\n\n")[2])), "accelerators", accelerators_table(table)
    )


def main() -> None:
    """Write the file; with --check only say whether it is up to date."""
    path = CHART / "README.md"
    wanted = readme(CHART)
    if "--check" in sys.argv and wanted != path.read_text(encoding="utf-8"):
        sys.exit(f"{path} is behind values.yaml: run tools/chart_readme.py.")
    path.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
