"""`python -m tests.support.fake_engine_worker …`: the worker's own command, whose engine is the fake one."""

from polyfleet.process.signals import end_at_signals

if __name__ == "__main__":
    end_at_signals()  # as in the worker's own: while the rest is imported, too

from polyfleet.serving import engine_client
from polyfleet.serving.command import main

FAKE_ENGINE = "tests.support.fake_engine"

if __name__ == "__main__":
    engine_client.MODULE = FAKE_ENGINE
    main()
