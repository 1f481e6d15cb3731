"""Asks `/healthz` all the time, from a process of its own, until its standard input ends; then prints what it saw.

python bench/soaking/probe.py 127.0.0.1:8000   # one JSON object: milliseconds
"""

import http.client
import json
import select
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it also runs as a file

from polyfleet.benchmark.work import percentile

INTERVAL_SECONDS = 0.02
TIMEOUT_SECONDS = 30.0


def main() -> None:
    """Probe and print."""
    host, _, port = sys.argv[1].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_SECONDS)
    latencies: list[float] = []
    delays: list[float] = []  # by which this process itself ran late: what the operating system adds, with no gateway
    failures = 0
    while True:
        wanted = time.monotonic() + INTERVAL_SECONDS
        if select.select([sys.stdin], [], [], INTERVAL_SECONDS)[0]:
            break
        begin = time.monotonic()
        delays.append(max(0.0, begin - wanted) * 1e3)
        try:
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            response.read()
            failures += response.status != 200
        except (OSError, http.client.HTTPException):
            failures += 1
            connection.close()
        latencies.append((time.monotonic() - begin) * 1e3)
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    seen = {name: percentile(latencies, share) for name, share in shares.items()}
    print(json.dumps({**seen, "delay_p99": percentile(delays, 0.99), "count": len(latencies), "failures": failures}))


if __name__ == "__main__":
    main()
