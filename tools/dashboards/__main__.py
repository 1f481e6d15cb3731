"""Write every dashboard's JSON into deploy/grafana and into the chart; with --check only say whether it is there."""

import json
import sys
from pathlib import Path

from tools.dashboards.boards import DASHBOARDS

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "deploy" / "grafana", ROOT / "charts" / "polyfleet" / "dashboards")


def files() -> dict[Path, str]:
    """What should lie where."""
    texts = {f"{each.name}.json": json.dumps(each.json(), indent=2) + "\n" for each in DASHBOARDS}
    return {folder / name: text for folder in FOLDERS for name, text in texts.items()}


def problems(wanted: dict[Path, str]) -> list[str]:
    """Files that differ, are missing, or are nobody's."""
    found = {path: path.read_text(encoding="utf-8") for folder in FOLDERS for path in folder.glob("*.json")}
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
    for folder in FOLDERS:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.json"):
            path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
