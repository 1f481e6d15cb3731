"""The page that a browser gets at the root, and health."""

from pathlib import Path

import httpx2 as httpx
import pytest
from tests.support.fake_generation import FakeGeneration, gateway_state
from tests.support.http_server import serve_http

from polyfleet.gateway.http import create_app
from polyfleet.gateway.parts import GatewayParts


def test_health(state: GatewayParts, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
    monkeypatch.setattr(state.health, "draining", True)
    assert (http.get("/readyz").status_code, http.get("/readyz").text) == (503, "The gateway is shutting down.\n")
    assert http.get("/healthz").status_code == 200


def test_a_browser_at_the_root_gets_a_page_and_others_text(http: httpx.Client) -> None:
    page = http.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert '<a href="/v1/models">' in page.text
    assert "org/fake" in page.text
    text = http.get("/")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert f"base URL {http.base_url}/v1" in text.text.replace("//v1", "/v1")
    assert '"model": "org/fake"' in text.text
    assert http.head("/").status_code == 200


def test_the_page_takes_no_markup_from_the_host_header(http: httpx.Client) -> None:
    page = http.get("/", headers={"accept": "text/html", "host": "a<script>alert(1)</script>"})
    assert "<script>" not in page.text


def test_the_page_of_a_gateway_with_keys_names_no_model(generation: FakeGeneration, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys: [{{id: me, hash: {'a' * 64}}}]")
    with serve_http(create_app(gateway_state(generation, keys_file=keys, ready_workers=0))) as url:
        shown = httpx.get(url).text
    assert "org/fake" not in shown
    assert "Authorization: Bearer KEY" in shown
    assert "It is not ready: No worker is ready." in shown
