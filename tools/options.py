"""Write what tells of the engine's options: the file's schema, the chart's, and the tables of the chart and of docs.

All of it follows from `polyfleet.wire.options`; `--check` only says what is behind it.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from tools.chart_readme import cell, replaced

from polyfleet.cli.config import config_schema
from polyfleet.wire.options import OPTIONS, Option

ROOT = Path(__file__).parent.parent
CHART_OPTIONS = re.compile(r'(\n    "options": \{\n.*?\n      "properties": )\{.*?\n      \}', re.DOTALL)
# Of the chart's options, no engine's: kept as they are.
WORKERS_OWN = ("canaryInterval", "loadStallTimeout", "telemetryInterval")


def camel(name: str) -> str:
    """An option's name in the chart."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def helped(option: Option, name: Callable[[str], str]) -> str:
    """What an option says of itself, with the names that others have there."""
    return re.sub("|".join(each for each in OPTIONS if "_" in each), lambda found: name(found[0]), option.help)


def chart_schema(text: str) -> str:
    """values.schema.json with the options as they are declared, before those that are a worker's own."""
    present = json.loads(text)["definitions"]["options"]["properties"]
    properties = {camel(each.name): {**each.schema(), "description": helped(each, camel)} for each in OPTIONS.values()}
    properties |= {name: present[name] for name in WORKERS_OWN}
    lines = ",\n".join(f"        {json.dumps(name)}: {json.dumps(schema)}" for name, schema in properties.items())
    text, count = CHART_OPTIONS.subn(lambda found: f"{found[1]}{{\n{lines}\n      }}", text)
    if count != 1:
        sys.exit("values.schema.json: its definitions.options are not written as this tool looks for them.")
    return text


def table(name: Callable[[str], str]) -> str:
    """Every option under the name it has there, by groups."""
    lines = ["| option | of | must be | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for each in OPTIONS.values():
        default = f"`{json.dumps(each.default).strip(chr(34))}`"
        lines.append(f"| `{name(each.name)}` | {each.group} | {each.limit} | {default} | {cell(helped(each, name))} |")
    return "\n".join(lines)


def files() -> dict[Path, str]:
    """What each file should be."""
    schema, readme = ROOT / "charts/polyfleet/values.schema.json", ROOT / "charts/polyfleet/README.md"
    guide = ROOT / "docs/operations.md"
    return {
        ROOT / "docs/polyfleet.schema.json": json.dumps(config_schema(), indent=2) + "\n",
        schema: chart_schema(schema.read_text(encoding="utf-8")),
        readme: replaced(readme.read_text(encoding="utf-8"), "options", table(camel)),
        guide: replaced(guide.read_text(encoding="utf-8"), "options", table(str)),
    }


def main() -> None:
    """Write the files; with --check only say whether they are up to date."""
    behind = {
        path: text for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv and behind:
        names = ", ".join(str(path.relative_to(ROOT)) for path in behind)
        sys.exit(f"behind polyfleet.wire.options: {names}: run python -m tools.options.")
    for path, text in behind.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
