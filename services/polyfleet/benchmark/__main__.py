"""A benchmark in a process of its own: settings in, news and rows out, in lines of JSON.

    echo '{"gateway": "127.0.0.1:50051", "requests": 8}' | python -m polyfleet.benchmark

The first line of standard input says where and what; the process ends when that input does. Each line of output has
`ended` and `errors` so far; the last one has `rows`, and `problem`: why nothing could be measured, empty where it was.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from polyfleet.benchmark.figures import load_rows
from polyfleet.benchmark.loops import Plan, Result, run_rounds, warm_up
from polyfleet.benchmark.target import GrpcTarget
from polyfleet.benchmark.work import Job, Outcome, make_jobs
from polyfleet.client import Tls

NEWS_SECONDS = 0.5


class ToldTarget(GrpcTarget):
    """Tells how far it is."""

    def __init__(self, *where: Any, **more: Any) -> None:
        super().__init__(*where, **more)
        self.ended = self.errors = 0
        self._told = 0.0

    async def run(self, job: Job, due: float) -> Outcome:
        """See Target."""
        outcome = await super().run(job, due)
        self.ended, self.errors = self.ended + 1, self.errors + bool(outcome.error)
        if (now := time.monotonic()) - self._told > NEWS_SECONDS:
            self._told = now
            say({"ended": self.ended, "errors": self.errors})
        return outcome


async def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """The last line of output."""
    plan = Plan(**{name: settings[name] for name in Plan.__dataclass_fields__ if name in settings})
    size = settings.get("prompt_tokens", 128), settings.get("max_tokens", 64)
    jobs = make_jobs(settings.get("prompt", "text"), *size, plan.seed)
    key_file, ca_file = settings.get("key_file"), settings.get("ca_file")
    key = Path(key_file).read_text(encoding="utf-8").split("\n", 1)[0].strip() if key_file else ""
    where = "gateway", settings["gateway"], settings.get("model", "")
    target = ToldTarget(*where, key, tls=Tls(ca_file=Path(ca_file)) if ca_file else False)
    async with target:
        await warm_up(target, jobs, plan)
        target.ended = target.errors = 0
        (result,) = await run_rounds([target], jobs, plan)
    rows = [{"name": row.name, "value": row.value, "unit": row.unit} for row in load_rows(result, None)]
    counts = {"ended": target.ended, "errors": target.errors}
    return {**counts, "rows": rows if result.good else [], "problem": problem_of(result)}


def problem_of(result: Result) -> str:
    """Why there is nothing to tell."""
    if result.good:
        return ""
    if not result.errors:
        return "No request was sent."
    return f"No request went well: {Counter(result.errors).most_common(1)[0][0]}"


def say(news: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps(news), flush=True)


def main() -> None:
    """Read, measure, tell."""
    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()  # who asked has gone
    try:
        say(asyncio.run(measure(settings)))
    except (OSError, ValueError) as error:
        say({"problem": str(error)})
    os._exit(0)


if __name__ == "__main__":
    main()
