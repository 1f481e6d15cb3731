"""Benchmarks in a browser: run, compared, and saved as a picture that shows every figure."""

import struct
from pathlib import Path
from typing import Any

from tests.integration.console.pages.conftest import Visit
from tests.support.browser import faults
from tests.support.console_stack import ConsoleStack

from polyfleet.v1 import operations_pb2

PNG = b"\x89PNG\r\n\x1a\n"
COLOURS = """() => {
  const canvas = document.querySelector("canvas");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let i = 0; i < data.length; i += 4) found.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
  return [...found];
}"""


def run(stack: ConsoleStack, page: Any) -> str:
    """Run one, and stay at its page."""
    plan = operations_pb2.BenchmarkPlan(model="team/chat", requests=4, concurrency=2, prompt_tokens=8, max_tokens=8)
    job = stack.ask("StartBenchmark", operations_pb2.StartBenchmarkRequest(plan=plan)).benchmark
    page.goto(f"/bench/{job.id}")
    page.locator("#figures").wait_for()
    return str(job.id)


def test_two_benchmarks_are_compared_and_saved_as_a_picture(visit: Visit, stack: ConsoleStack, tmp_path: Path) -> None:
    page = visit("/bench")
    first, second = run(stack, page), run(stack, page)
    assert "217,119,6" not in page.evaluate(COLOURS)
    page.get_by_label("Beside").select_option(first)
    page.get_by_role("button", name="Compare").click()
    page.locator("th", has_text=first).wait_for()
    assert {"37,99,235", "217,119,6"} <= set(page.evaluate(COLOURS))
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the picture").click()
    assert saved.value.suggested_filename == f"{second}-{first}.png"
    picture = Path(saved.value.path()).read_bytes()
    assert picture.startswith(PNG)
    width, height = struct.unpack(">II", picture[16:24])
    assert (width, height) == (960, 48 + 44 * page.locator("#figures tbody tr").count())
    assert faults(page) == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.complaints == []
