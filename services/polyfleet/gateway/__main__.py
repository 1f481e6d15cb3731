"""`python -m polyfleet.gateway`."""

from polyfleet.gateway.command import main

main(prog_name="python -m polyfleet.gateway")
