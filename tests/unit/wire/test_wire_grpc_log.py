"""What is not an error, gRPC's core keeps to itself in each of our processes."""

import importlib
import os
from pathlib import Path

import pytest

import polyfleet.cli
import polyfleet.client
import polyfleet.gateway
import polyfleet.scheduler
import polyfleet.serving
from polyfleet.wire import grpc_log


def test_errors_alone_are_told_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, want in ((None, "ERROR"), ("DEBUG", "DEBUG")):
        monkeypatch.setenv("GRPC_VERBOSITY", given) if given else monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
        importlib.reload(grpc_log)
        assert os.environ["GRPC_VERBOSITY"] == want


@pytest.mark.parametrize(
    "package", [polyfleet.cli, polyfleet.client, polyfleet.gateway, polyfleet.scheduler, polyfleet.serving]
)
def test_it_is_said_before_anything_imports_grpc(package: object) -> None:
    lines = Path(str(getattr(package, "__file__"))).read_text(encoding="utf-8").splitlines()  # noqa: B009
    first = next(line for line in lines if line.startswith(("import ", "from ")))
    assert first.startswith("import polyfleet.wire.grpc_log ")
