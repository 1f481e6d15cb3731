"""`python -m polyfleet.scheduler` runs the scheduler."""

from polyfleet.process.signals import end_at_signals

end_at_signals()  # while the rest is imported, too
from polyfleet.scheduler.command import main  # noqa: E402

main(prog_name="python -m polyfleet.scheduler")
