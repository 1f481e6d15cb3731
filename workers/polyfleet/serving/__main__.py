"""`python -m polyfleet.serving` runs a worker."""

from polyfleet.process.signals import end_at_signals

end_at_signals()  # while the rest is imported, too
from polyfleet.serving.command import main  # noqa: E402

main(prog_name="python -m polyfleet.serving")
