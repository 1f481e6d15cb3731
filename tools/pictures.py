"""Draw the pictures of docs/placement.md anew, and print the rows of its tables.

    python -m tools.pictures

They come from `polyfleet simulate` with these arguments, the same for the same code; it takes half a minute.
"""

import json
import sys
from pathlib import Path

from click.testing import CliRunner

from polyfleet.cli.commands.simulate import simulate

DOCS = Path(__file__).parents[1] / "docs"
POLICIES = ("completion", "prefix-queue", "least-requests", "round-robin")
PICTURES = {"placement.svg": "--no-shared-prefixes", "placement-shared.svg": "--shared-prefixes"}


def main() -> int:
    """Write and print."""
    named = [part for name in POLICIES for part in ("--policy", name)]
    for file, prompts in PICTURES.items():
        arguments = [prompts, "--load", "0.95", "--requests", "1500", "--plot", str(DOCS / file), "--json", *named]
        result = CliRunner().invoke(simulate, arguments)
        if result.exit_code:
            print(result.output, file=sys.stderr)
            return 1
        print(file)
        for name, each in json.loads(result.stdout)["policies"].items():
            good, first, token = each["good_ratio"], each["first_token_seconds_p95"], each["token_seconds_p95"]
            print(f"| {name} | {100 * good:.0f} % | {first:.2g} | {1000 * token:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
