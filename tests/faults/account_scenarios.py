"""How the fault points of accounts, sessions and projects are reached. They touch no launch, so none follows."""

from __future__ import annotations

from contextlib import suppress

from tuneplane.app.client import ApiClient, ApiRefused, Credentials

from .rig import Rig, Strike
from .scenarios import refused

PASSWORD = "correct horse battery staple"


def _user(rig: Rig) -> str:
    name = rig.fresh_name("user-")
    rig.ask_gone(lambda: rig.system.client.post("/api/users", {"username": name, "password": PASSWORD}))
    return name


def _stranger(rig: Rig) -> ApiClient:
    """A client without a token, as a browser that nobody has signed in with."""
    ca = (rig.system.directory / "data" / "console-ca.pem").read_text()
    return ApiClient(Credentials(url=rig.system.console_url, token="", ca_pem=ca))


def disable_user(rig: Rig, strike: Strike) -> None:
    """R-ADM-01: once it is answered, the session is over."""
    name = _user(rig)
    with _stranger(rig) as browser:
        rig.ask(lambda: browser.log_in(name, PASSWORD))
        rig.strike(strike)
        rig.ask(lambda: rig.system.client.patch(f"/api/users/{name}", {"disabled": True}))
        refused(rig, lambda: browser.get("/api/whoami"), 401)
    rig.wait_struck(strike)


def create_project(rig: Rig, strike: Strike) -> None:
    name = rig.fresh_name("project-")
    rig.strike(strike)
    rig.ask_gone(lambda: rig.system.client.post("/api/projects", {"id": name}))
    assert name in [one["id"] for one in rig.ask(lambda: rig.system.client.list_all("/api/projects"))]
    rig.wait_struck(strike)


def add_member(rig: Rig, strike: Strike) -> None:
    user, name = _user(rig), rig.fresh_name("project-")
    rig.ask_gone(lambda: rig.system.client.post("/api/projects", {"id": name}))
    rig.strike(strike)
    rig.ask(lambda: rig.system.client.put(f"/api/projects/{name}/members/{user}"))
    [project] = [one for one in rig.ask(lambda: rig.system.client.list_all("/api/projects")) if one["id"] == name]
    assert project["members"] == [user]
    rig.wait_struck(strike)


def sign_in(rig: Rig, strike: Strike) -> None:
    name = _user(rig)
    rig.strike(strike)
    with _stranger(rig) as browser:
        rig.ask(lambda: browser.log_in(name, PASSWORD))
        assert rig.ask(lambda: browser.get("/api/whoami"))["username"] == name
    rig.wait_struck(strike)


def sign_out(rig: Rig, strike: Strike) -> None:
    """A repeat after a lost answer is told that the session is over: which is what was wanted."""
    name = _user(rig)
    with _stranger(rig) as browser:
        rig.ask(lambda: browser.log_in(name, PASSWORD))
        rig.strike(strike)
        with suppress(ApiRefused):
            rig.ask(lambda: browser.post("/api/auth/logout"))
        refused(rig, lambda: browser.get("/api/whoami"), 401)
    rig.wait_struck(strike)
