"""A third party's accelerator behind `polyfleet serve`: its backend, its executor, a device that its tool lists."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.sample_backend import environment, install
from tests.support.serve_process import ServeProcess, wait_for
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.client import Client


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, TinyShape(vocabulary=264), extra=byte_level_metadata())
    return path


@pytest.fixture(scope="module")
def serve(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    site, machine = install(tmp_path_factory.mktemp("site")), tmp_path_factory.mktemp("machine")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(site, machine).items():
            patch.setenv(name, value)
        families = ("--accelerator", "nowhere", "--accelerator", "sample")
        started = ServeProcess(tmp_path_factory.mktemp("state"), "--model", str(model), *families).start()
    try:
        yield started.wait_ready()
    finally:
        started.stop()


def test_it_answers(serve: ServeProcess) -> None:
    (worker,) = serve.ready_workers()
    assert (worker["accelerator"], worker["device"]) == ("sample", "Sample One")
    with Client(serve.grpc) as client:
        answer = client.generate("hello", model="tiny", max_tokens=5, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    listed = json.loads(serve.polyfleet("models", "--gateway", serve.grpc, "--json").stdout)
    assert listed[0]["accelerators"] == ["sample"]


def test_a_deployment_waits_with_the_reason_until_there_is_such_a_device(serve: ServeProcess, model: Path) -> None:
    fleet = ("--fleet", serve.fleet)
    done = serve.polyfleet("deploy", "later", str(model), "--accelerator", "metax_c500", *fleet)
    assert done.returncode == 0, done.stderr
    reason = "later: No node of the cluster has metax_c500."
    wait_for(lambda: reason in serve.polyfleet("workers", *fleet).stdout, "the reason")
    moved = serve.polyfleet("deploy", "later", "--accelerator", "sample", "--accelerator", "cpu", *fleet)
    assert moved.returncode == 0, moved.stderr
    wait_for(lambda: len(serve.ready_workers()) == 2, "the second worker")
    assert {each["accelerator"] for each in serve.ready_workers()} == {"sample", "cpu"}
    refused = serve.polyfleet("deploy", "never", str(model), "--accelerator", "CUDA:0", *fleet)
    assert (refused.returncode, "must be the name of an accelerator" in refused.stderr) == (2, True)
