"""Who gets into the console, and what browsers are kept from."""

from pathlib import Path

import pytest
from tests.support.console_rig import ConsoleRig, csrf_of, submit
from tests.unit.process.test_process_fleet_keys import write

from polyfleet.console.access.attempts import MOST, SECONDS, Attempts
from polyfleet.console.access.sessions import Sessions
from polyfleet.console.config import load_config
from polyfleet.console.pages.entrance import local_path
from polyfleet.gateway.auth import Authenticator
from polyfleet.process.config import ConfigError

NOBODY = "127.0.0.1:1"  # no scheduler is there


def keys(folder: Path, *entries: dict[str, str]) -> str:
    """Keys whose secrets are their ids."""
    return str(write(folder / "keys.yaml", *entries))


OPS, TEAM = {"id": "ops", "role": "operator"}, {"id": "team", "tenant": "a"}


async def test_without_keys_it_is_open_on_this_machine_alone() -> None:
    async with ConsoleRig(fleet=NOBODY) as rig:
        assert (await rig.browser().get("/requests")).status_code == 200
        assert (await rig.browser("localhost:8080").get("/requests")).status_code == 200
        stranger = await rig.browser("evil.example").get("/requests")
        assert (stranger.status_code, "on this machine alone" in stranger.text) == (403, True)


async def test_who_has_no_session_signs_in_and_comes_back(tmp_path: Path) -> None:
    async with ConsoleRig(fleet=NOBODY, keys_file=keys(tmp_path, OPS, TEAM)) as rig:
        browser = rig.browser()
        answer = await browser.get("/requests?tenant=a")
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/requests%3Ftenant%3Da")
        assert (await browser.get("/live/fleet", headers={"accept": "text/event-stream"})).status_code == 401
        wrong = await browser.post("/sign-in", data={"key": "guess"})
        assert (wrong.status_code, "not known" in wrong.text) == (401, True)
        right = await browser.post("/sign-in", data={"key": "ops", "next": "/requests?tenant=a"})
        assert (right.status_code, right.headers["location"]) == (303, "/requests?tenant=a")
        cookie = right.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
        assert (await browser.get("/requests")).status_code == 200
        kept = dict(browser.cookies)
        await submit(browser, "/sign-out")
        assert (await browser.get("/requests")).status_code == 303
        browser.cookies.update(kept)  # whoever has kept the cookie has no session by it
        assert (await browser.get("/requests")).status_code == 303


async def test_a_tenant_sees_neither_the_fleet_nor_what_operators_do(tmp_path: Path) -> None:
    async with ConsoleRig(fleet=NOBODY, keys_file=keys(tmp_path, OPS, TEAM)) as rig:
        team = await rig.signed_in("team")
        assert (await team.get("/")).headers["location"] == "/chat"
        pages = ("/fleet", "/live/fleet", "/history.json", "/devices/h/cuda/0", "/workers/w", "/workers/w/log")
        for page in (*pages, "/models", "/models/new", "/requests", "/requests/r", "/keys", "/bench", "/bench/b"):
            assert (await team.get(page)).status_code == 403, page
        forms = ("/workers/w/drain", "/models", "/models/m/scale", "/models/m/undeploy", "/keys", "/keys/k/revoke")
        for form in (*forms, "/tenants/a/limits", "/models/m/undo", "/bench", "/bench/b/cancel"):
            assert (await submit(team, form)).status_code == 403, form
        assert "/fleet" not in (await team.get("/chat")).text


@pytest.mark.parametrize("path", ["/sign-out", "/look", "/workers/w/drain", "/models", "/keys", "/chat/answer"])
async def test_a_form_of_another_site_changes_nothing(tmp_path: Path, path: str) -> None:
    async with ConsoleRig(fleet=NOBODY, keys_file=keys(tmp_path, OPS)) as rig:
        browser, other = await rig.signed_in("ops"), await rig.signed_in("ops")
        assert (await browser.post(path)).status_code == 403
        assert (await browser.post(path, data={"csrf": await csrf_of(other)})).status_code == 403
        assert (await browser.post(path, headers={"x-csrf-token": ""})).status_code == 403
        assert (await browser.get("/requests")).status_code == 200


async def test_a_revoked_key_signs_its_sessions_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.process.keys.RELOAD_SECONDS", 0.0)
    async with ConsoleRig(fleet=NOBODY, keys_file=keys(tmp_path, OPS, TEAM)) as rig:
        browser = await rig.signed_in("ops")
        assert (await browser.get("/requests")).status_code == 200
        keys(tmp_path, TEAM)
        assert (await browser.get("/requests")).status_code == 303


async def test_an_address_may_guess_only_so_often(tmp_path: Path) -> None:
    async with ConsoleRig(fleet=NOBODY, keys_file=keys(tmp_path, OPS)) as rig:
        browser = rig.browser()
        codes = [(await browser.post("/sign-in", data={"key": "guess"})).status_code for _ in range(MOST + 1)]
        assert codes == [401] * MOST + [429]
        refused = await browser.post("/sign-in", data={"key": "ops"})
        assert (refused.status_code, 1 <= int(refused.headers["retry-after"]) <= SECONDS) == (429, True)


def test_attempts_are_forgotten_after_their_time() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    for _ in range(MOST):
        attempts.failed("a")
        now += 1
    assert (attempts.wait("a"), attempts.wait("b")) == (int(SECONDS) - MOST, 0)
    now = SECONDS
    assert attempts.wait("a") == 0


def test_a_session_ends_when_nobody_comes_and_its_name_can_not_be_made_up(tmp_path: Path) -> None:
    now = 0.0
    sessions = Sessions(Authenticator(Path(keys(tmp_path, OPS))), 60, lambda: now)
    cookie = sessions.sign_in("ops")
    name, _, signature = cookie.partition(".")
    for forged in (None, "", ".", name, f"{name}.", f"{name}.{'0' * 64}", f"x{name}.{signature}", f"{name}.é"):
        assert sessions.find(forged) is None
    now = 60
    assert sessions.find(cookie)
    now = 121
    assert sessions.find(cookie) is None


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("/requests?tenant=a", "/requests?tenant=a"),
        ("//evil.example", "/"),
        ("/%5Cevil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a%0d%0aset-cookie:x", "/"),
        ("", "/"),
    ],
)
def test_signing_in_leads_to_no_other_site(wanted: str, path: str) -> None:
    assert local_path(wanted) == path


async def test_every_answer_keeps_scripts_and_frames_of_others_out() -> None:
    async with ConsoleRig(fleet=NOBODY) as rig:
        for path in ("/requests", "/static/page.js", "/nowhere", "/healthz"):
            headers = (await rig.browser().get(path)).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("console: {listen: 1}", "listen"),
        ("console: {lisen: '127.0.0.1:1'}", "lisen"),
        ("console: {root_path: polyfleet}", "root_path"),
        ("console: {tls_cert: a.pem}", "--tls-key"),
        ("console: {session_seconds: 1}", "session_seconds"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, said: str, problem: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(said)
    with pytest.raises(ConfigError, match=problem):
        load_config(path)
