"""Write every dashboard's JSON into the chart, for Grafana with it or without; --check only says if it is there."""

import json
import sys
from pathlib import Path

from tools.dashboards.boards import DASHBOARDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "charts" / "polyfleet" / "dashboards"


def files() -> dict[Path, str]:
    """What should lie where."""
    return {FOLDER / f"{each.name}.json": json.dumps(each.json(), indent=2) + "\n" for each in DASHBOARDS}


def problems(wanted: dict[Path, str]) -> list[str]:
    """Files that differ, are missing, or are nobody's."""
    found = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    return sorted(
        path.relative_to(ROOT).as_posix()
        for path in wanted.keys() | found.keys()
        if wanted.get(path) != found.get(path)
    )


def main() -> int:
    """The exit code says, with --check, whether everything is up to date."""
    wanted = files()
    if "--check" in sys.argv:
        stale = problems(wanted)
        print(f"dashboards: not what the code makes, run `make dashboards`: {', '.join(stale)}" if stale else
              f"dashboards: {len(wanted)} files are what the code makes")  # fmt: skip
        return 1 if stale else 0
    for name in problems(wanted):
        (ROOT / name).unlink(missing_ok=True)
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
