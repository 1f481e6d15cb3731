"""What `polyfleet serve` printed works when copied, and so do the other commands against the running stack."""

import json
import re
import shutil
import subprocess
import sys

import httpx2
import psutil
import pytest
from tests.support.serve_process import ServeProcess, command_line

from polyfleet.cli.stack import hints
from polyfleet.cli.stack.settings import MODEL_NAME, Flags, resolve

GATEWAY_BYTES = 300 * 1000 * 1000


def printed_calls(stack: ServeProcess) -> dict[str, str]:
    flags = Flags(grpc_listen=stack.grpc, http_listen=stack.http, fleet_listen=stack.fleet)
    return hints.calls(resolve(flags))


def test_serve_prints_endpoints_and_calls(stack: ServeProcess) -> None:
    assert re.search(rf"Self-check {MODEL_NAME}: .*\w", stack.output)
    for address in (stack.grpc, stack.http, stack.fleet, str(stack.state_dir)):
        assert address in stack.output
    for call in printed_calls(stack).values():
        assert call in stack.output
    assert "\x1b" not in stack.output


def test_the_printed_console_shows_the_fleet(stack: ServeProcess) -> None:
    printed = re.search(r"^Console +(http://\S+)", stack.output, re.MULTILINE)
    assert printed, stack.output
    with httpx2.Client(base_url=printed[1], follow_redirects=True) as browser:
        page = browser.get("/")
    assert (page.status_code, page.url.path) == (200, "/fleet")
    assert all(f'/workers/{worker["worker_id"]}"' in page.text for worker in stack.workers())


def test_the_printed_python_answers(stack: ServeProcess) -> None:
    (script,) = [call for name, call in printed_calls(stack).items() if name.startswith("Python")]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=True)
    assert len(done.stdout) > 3


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_curl_streams(stack: ServeProcess) -> None:
    script = printed_calls(stack)["curl"].replace('"stream"', '"max_tokens": 4, "stream"')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=200, check=True)
    events = [line for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert len(events) > 2
    assert events[-1] == "data: [DONE]"


def test_the_printed_command_chats(stack: ServeProcess) -> None:
    command = printed_calls(stack)["Shell"].split()[1:]
    done = stack.polyfleet(*command, "--max-tokens", "8", "--temperature", "0", stdin="Say: the capital of France")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_generate_online_equals_offline(stack: ServeProcess) -> None:
    prompt = ("--prompt", "The capital of France is", "--max-tokens", "8", "--temperature", "0", "--json")
    online = stack.polyfleet("generate", "--gateway", stack.grpc, *prompt)
    source = resolve(Flags()).config.deployments[0].source
    offline = stack.polyfleet("generate", "--offline", source, *prompt)
    answers = [json.loads(done.stdout) for done in (online, offline)]
    for key in ("token_ids", "text", "finish_reason"):
        assert answers[0][key] == answers[1][key]
    assert "Paris" in answers[0]["text"]


def test_models_and_workers(stack: ServeProcess) -> None:
    (model,) = json.loads(stack.polyfleet("models", "--gateway", stack.grpc, "--json").stdout)
    assert (model["name"], model["ready_workers"] >= 1, model["accelerators"]) == (MODEL_NAME, True, ["cpu"])
    (worker,) = json.loads(stack.polyfleet("workers", "--fleet", stack.fleet, "--json").stdout)
    assert worker["state"] == "ready"
    assert worker["model"] == MODEL_NAME
    assert psutil.pid_exists(worker["pid"])


def test_info_names_what_runs_each_operator(stack: ServeProcess) -> None:
    facts = json.loads(stack.polyfleet("info", "--json").stdout)
    assert facts["problem"] == ""
    assert [each["name"] for each in facts["accelerators"] if each["default"]]
    assert {"embedding", "linear", "paged_attention"} <= set(facts["operators"])


def test_the_gateway_stays_small(stack: ServeProcess) -> None:
    (gateway,) = stack.find(r"-m polyfleet\.gateway")
    resident = gateway.memory_info().rss
    print(f"gateway resident memory: {resident / 1e6:.0f} MB ({command_line(gateway)})")
    assert resident < GATEWAY_BYTES
