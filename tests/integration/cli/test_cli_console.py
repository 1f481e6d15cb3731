"""`polyfleet console` as a process."""

import signal
import subprocess
import urllib.request

from tests.support.ports import free_address
from tests.support.serve_process import POLYFLEET


def test_it_says_where_it_is_once_it_is_there() -> None:
    address = free_address()
    command = [*POLYFLEET, "console", "--listen", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert process.stderr.readline() == f"The console is at http://{address}; Ctrl-C ends it.\n"
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=60) as answer:
            assert answer.read() == b"ok\n"
        taken = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert taken.stderr == f"Error: {address} is in use: free it, or choose another address with --listen.\n"
    assert taken.returncode == 2
