"""The console's models on a scheduler that serves: checked, rolled, taken back, scaled."""

import grpc
from tests.support.console_rig import ConsoleRig, device, submit, with_devices
from tests.support.fake_looker import Looker
from tests.support.running_scheduler import Running

from polyfleet.v1 import fleet_pb2, worker_pb2_grpc

HOSTILE = '<img src=x onerror="alert(1)">'


async def test_a_model_is_checked_before_it_is_deployed(running: Running, rig: ConsoleRig) -> None:
    browser = rig.browser()
    asked = {"name": "", "source": "/none", "act": "check", "option.max_sequences": "5"}
    refused = await submit(browser, "/models", **asked)
    assert (refused.status_code, "No worker is there" in refused.text) == (400, True)
    looker = Looker()
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServicer_to_server(looker, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    await with_devices(running, "w-1", device(0), device(1, memory_total_bytes=16 * 2**30), address=address)
    seen = await submit(browser, "/models", **asked)
    assert seen.status_code == 200, seen.text
    assert all(
        text in seen.text for text in ("cuda Card", "8.0 GiB", "16.0 GiB", "fits (captured)", ">256<", 'value="/none"')
    )
    assert looker.asked[0].options.max_sequences == 5
    looker.fits = False
    unfit = (await submit(browser, "/models", **asked)).text
    assert all(text in unfit for text in ("does not fit: no room", "a device with 2 GiB free"))
    looker.problem = (grpc.StatusCode.FAILED_PRECONDITION, f"The model {HOSTILE}: is none.")
    refused = await submit(browser, "/models", **asked)
    assert (refused.status_code, HOSTILE in refused.text, "is none." in refused.text) == (400, False, True)
    assert not (await running.snapshot()).deployments
    await server.stop(0)


async def test_a_model_is_rolled_to_another_revision(running: Running, rig: ConsoleRig) -> None:
    options = fleet_pb2.WorkerOptions(context_length=64, prefix_cache=False, dtype="float32")
    wish = fleet_pb2.ModelDeployment(name="small", source="fake:1", workers=2, options=options, accelerators=["cpu"])
    await running.fleet.Deploy(fleet_pb2.DeployRequest(deployment=wish))
    await rig.view.poll()
    browser = rig.browser()
    form = (await browser.get("/models/small/roll")).text
    assert all(text in form for text in ('value="fake:1"', 'value="64"', "<option selected>false</option>"))
    changes = {"source": "fake:2", "revision": "1", "accelerators": "cpu", "option.context_length": "128"}
    answer = await submit(browser, "/models/small/roll", **changes)
    assert answer.status_code == 303, answer.text
    (found,) = (await running.snapshot()).deployments
    assert (found.source, found.workers, found.revision, found.options.context_length) == ("fake:2", 2, 2, 128)
    assert not found.options.HasField("prefix_cache")
    assert "Revision 2" in (await browser.get("/models/small/state")).text
    late = await submit(browser, "/models/small/roll", **changes)
    assert (late.status_code, 'role="alert"' in late.text) == (400, True)  # somebody else has changed it meanwhile
    for wrong in ({"source": " "}, {"option.context_length": "many"}, {"revision": "x"}):
        refused = await submit(browser, "/models/small/roll", **(changes | wrong))
        assert (refused.status_code, 'role="alert"' in refused.text) == (400, True)
    assert (await running.snapshot()).deployments[0].revision == 2
    for path in ("/models/none/roll", "/models/none/state"):
        assert (await browser.get(path)).status_code == 404


async def test_a_revision_is_shown_and_taken_back(running: Running, rig: ConsoleRig) -> None:
    browser = rig.browser()
    for source in ("fake:1", "fake:2"):
        wish = fleet_pb2.ModelDeployment(name="small", source=source, workers=1)
        await running.fleet.Deploy(fleet_pb2.DeployRequest(deployment=wish))
    await rig.view.poll()
    assert "Revision 2" in (await browser.get("/models")).text
    assert (await submit(browser, "/models/small/undo")).status_code == 303
    (found,) = (await running.snapshot()).deployments
    assert found.source == "fake:1"
    assert (await submit(browser, "/models/none/undo")).status_code == 409


async def test_a_scale_ends_what_follows_the_load(running: Running, rig: ConsoleRig) -> None:
    wish = fleet_pb2.ModelDeployment(name="small", source="fake:", workers=1)
    wish.autoscaling.max_workers = 4
    await running.fleet.Deploy(fleet_pb2.DeployRequest(deployment=wish))
    await rig.view.poll()
    browser = rig.browser()
    assert "workers by load: 0 to 4" in (await browser.get("/models")).text
    assert (await submit(browser, "/models/small/scale", workers="2")).status_code == 303
    (found,) = (await running.snapshot()).deployments
    assert (found.workers, found.HasField("autoscaling")) == (2, False)
