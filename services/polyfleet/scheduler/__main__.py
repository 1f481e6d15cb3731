"""`python -m polyfleet.scheduler` runs the scheduler."""

from polyfleet.scheduler.command import main

main(prog_name="python -m polyfleet.scheduler")
