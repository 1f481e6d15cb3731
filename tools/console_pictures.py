"""Take the pictures of docs/console.md from a console that runs: `python -m tools.console_pictures [FOLDER]`.

A fleet with a worker of every brand on a described machine, and a chat; needs Chromium.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.browser import chromium
from tests.support.console_stack import ConsoleStack
from tests.support.vendor_workers import MACHINES

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SIZE = {"width": 1280, "height": 800}
ANSWER = (
    "A fleet has **workers**, each on its own accelerator:\n\n```python\nfor worker in fleet:\n    print(worker)\n```"
)
PAGES = {"fleet": "/fleet", "models": "/models", "deploy": "/models/new"}


def take(page: Any, folder: Path) -> None:
    """Each page as it stands."""
    for name, path in PAGES.items():
        page.goto(path)
        page.screenshot(path=folder / f"console-{name}.png")
    page.goto("/chat")
    page.locator("#model").select_option("team/chat")
    page.get_by_label("What you say").fill("What is a fleet?")
    page.keyboard.press("Enter")
    page.locator(".facts-line", has_text="tokens/s").wait_for()
    page.screenshot(path=folder / "console-chat.png")


def main(folder: Path) -> None:
    """Start everything, take the pictures, end everything."""
    scratch = Path(tempfile.mkdtemp(prefix="console-pictures-"))
    with ConsoleStack(scratch) as stack, chromium() as browser:
        command = [sys.executable, "-m", "tests.support.vendor_workers", stack.fleet_address, str(scratch)]
        with (scratch / "vendors.log").open("w") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=dict(os.environ))
        try:
            stack.deploy("chat", "team/chat", workers=2)
            stack.say(ANSWER, token_seconds=0.02)
            stack.until_serving(set(MACHINES))
            take(browser.new_page(base_url=stack.open, viewport=SIZE), folder)
        finally:
            process.kill()
            process.wait(30)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
