"""`python -m polyfleet.cli` is `polyfleet`."""

from polyfleet.cli.main import main

main()
