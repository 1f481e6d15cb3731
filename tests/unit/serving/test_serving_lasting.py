"""What the engine process imports stays, and the collector leaves it alone."""

import gc

import pytest

from polyfleet.serving import engine_process


def test_what_is_imported_for_the_engine_is_never_looked_through_for_garbage() -> None:
    frozen = gc.get_freeze_count()
    try:
        with engine_process.lasting():
            collects, kept = gc.isenabled(), [[number] for number in range(100)]
        assert not collects
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
        with pytest.raises(ImportError), engine_process.lasting():
            raise ImportError
        assert gc.isenabled()
    finally:
        gc.unfreeze()
