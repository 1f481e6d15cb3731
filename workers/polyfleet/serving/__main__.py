"""`python -m polyfleet.serving` runs a worker."""

from polyfleet.serving.command import main

main(prog_name="python -m polyfleet.serving")
