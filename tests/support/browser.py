"""Chromium for tests, and axe-core, which looks for what shuts people out of a page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_CHROMIUM = "Chromium is not installed: apt-get install chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
AXE = Path(__file__).parents[1] / "data" / "axe.min.js"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright's, sync."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def faults(page: Any) -> list[str]:
    """What axe finds on the page that is serious or worse, a line each."""
    page.evaluate(AXE.read_text(encoding="utf-8"))  # through the debugger: the page's policy lets no script in
    found = page.evaluate("rules => axe.run(rules)", RULES)
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
