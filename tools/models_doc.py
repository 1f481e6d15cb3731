"""Write the table of architectures in docs/models.md anew, from the registry; `--check` says whether it is right."""

import sys
from pathlib import Path

from polyfleet.models.registry import ARCHITECTURES

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- from the registry: python tools/models_doc.py -->\n", "<!-- end -->\n"


def table() -> str:
    """One row for each architecture."""
    titles = "| model | `architectures` in `config.json` | `general.architecture` of a GGUF file | |\n"
    rows = [titles, "| --- | --- | --- | --- |\n"]
    for each in ARCHITECTURES.values():
        classes, names = (", ".join(f"`{name}`" for name in some) for some in (each.classes, each.gguf))
        rows.append(f"| {each.title} | {classes} | {names} | {each.notes} |\n")
    return "".join(rows)


def written(page: str) -> str:
    """The page with the table as it should be."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def main() -> int:
    """1 where `--check` finds another table."""
    page = PAGE.read_text(encoding="utf-8")
    new = written(page)
    if "--check" in sys.argv[1:]:
        if new != page:
            print("docs/models.md is not what the registry says: run `python tools/models_doc.py`")
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
