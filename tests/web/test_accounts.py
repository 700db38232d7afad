"""R-ADM-01: who may call what; sessions, CSRF, API tokens; nothing secret comes back twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.support import PASSWORD, job_spec, open_server, open_site
from tests.web.world import make_fleet
from tuneplane.domain.errors import Refused
from tuneplane.domain.jobs import Page
from tuneplane.web.routes import API_ROUTES
from tuneplane.web.routing import Who
from tuneplane.web.sessions import COOKIE, CSRF_HEADER

pytestmark = pytest.mark.postgres


def _address(path: str) -> str:
    return path.replace("{", "x-").replace("}", "")


async def test_every_guarded_route_refuses_a_stranger_with_a_problem(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.client() as http:
        for route in API_ROUTES:
            if route.who is Who.ALL:
                continue
            answer = await http.request(route.method, _address(route.path), content=b"not even JSON")
            assert answer.status_code == 401, route
            assert answer.json()["code"] == "unauthenticated"
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "header", ["Bearer", "Basic YTpi", "Bearer tpu_unknown", "Bearer " + "x" * 5000, "bearer \xff\xfe", "Bearer tpu_a tpu_b"]
)
async def test_wrong_authorization_is_unauthenticated(database: str, tmp_path: Path, header: str) -> None:
    async with open_server(database, tmp_path) as running, running.client() as http:
        answer = await http.get("/api/whoami", headers={"Authorization": header.encode("latin-1")})
        assert answer.status_code == 401
        assert header[7:] not in answer.text or len(header) < 10


async def test_every_administrators_route_refuses_a_user(database: str, tmp_path: Path) -> None:
    """R-FLT-05: and does so before it reads the body or looks for the object."""
    async with open_server(database, tmp_path) as running, running.user() as http:
        for route in API_ROUTES:
            if route.who is Who.ADMIN:
                answer = await http.request(route.method, _address(route.path), content=b"{")
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), route


async def test_services_refuse_a_user_also_without_the_gate(database: str) -> None:
    """R-FLT-05: the rule is in the services; the gate only answers earlier."""
    async with open_site(database) as running:
        fleet = await make_fleet(running)
        bob = await running.api.accounts.user_of_token(running.user_token)
        for attempt in (
            running.api.fleets.delete(bob, fleet),
            running.api.fleets.mint_join_token(bob, fleet),
            running.api.fleets.list_join_tokens(bob, fleet),
        ):
            with pytest.raises(Refused, match="administrator"):
                await attempt


async def test_session_needs_its_csrf_token_for_unsafe_methods(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.client() as http:
        signed_in = await http.post("/api/auth/login", json={"username": "bob", "password": PASSWORD})
        csrf = signed_in.json()["csrf_token"]
        cookie = signed_in.headers["set-cookie"]
        assert all(part in cookie for part in ("HttpOnly", "Secure", "Path=/", "SameSite=Lax"))
        assert "Domain" not in cookie
        assert (await http.get("/api/whoami")).json()["username"] == "bob"
        for headers in ({}, {CSRF_HEADER: "x" + csrf}, {CSRF_HEADER: csrf, "Sec-Fetch-Site": "cross-site"}):
            refused = await http.post("/api/tokens", json={"name": "x"}, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "csrf")
        assert (await http.post("/api/tokens", json={"name": "x"}, headers={CSRF_HEADER: csrf})).status_code == 201


async def test_csrf_token_of_another_session_is_refused(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.client() as one, running.client() as two:
        await one.post("/api/auth/login", json={"username": "bob", "password": PASSWORD})
        other = (await two.post("/api/auth/login", json={"username": "bob", "password": PASSWORD})).json()["csrf_token"]
        assert (await one.post("/api/tokens", json={"name": "x"}, headers={CSRF_HEADER: other})).status_code == 403


async def test_tampered_foreign_and_unsigned_cookies_are_unauthenticated(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.client() as http:
        signed_in = await http.post("/api/auth/login", json={"username": "bob", "password": PASSWORD})
        good = signed_in.cookies[COOKIE]
        http.cookies.clear()
        head, body, signature = good.split(".")
        unsigned = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0." + body + "."
        for cookie in (good[:-2] + "xx", f"{head}.{body[:-2]}.{signature}", unsigned, "x", "a.b.c", "x" * 5000):
            assert (await http.get("/api/whoami", headers={"Cookie": f"{COOKIE}={cookie}"})).status_code == 401
        assert (await http.get("/api/whoami", headers={"Cookie": f"{COOKIE}={good}"})).status_code == 200


async def test_wrong_password_and_unknown_user_get_the_same_answer(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.client() as http:
        answers = [
            await http.post("/api/auth/login", json={"username": name, "password": password})
            for name, password in (("bob", "wrong"), ("nobody", PASSWORD), ("Not A Name", "x"), ("bob", "x" * 5000), ("bob", ""))
        ]
        bodies = [{key: value for key, value in answer.json().items() if key != "trace"} for answer in answers]
        assert {answer.status_code for answer in answers} == {401}
        assert all(body == bodies[0] for body in bodies)
        assert all(COOKIE not in answer.headers.get("set-cookie", "") for answer in answers)


async def test_revoked_token_is_refused_at_once_and_only_its_owner_can_revoke(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.user() as bob, running.admin() as ada:
        minted = (await bob.post("/api/tokens", json={"name": "script"})).json()
        assert minted["token"].startswith("tpu_")
        assert (await ada.delete(f"/api/tokens/{minted['id']}")).status_code == 404
        async with running.client(minted["token"]) as script:
            assert (await script.get("/api/whoami")).status_code == 200
            assert (await bob.delete(f"/api/tokens/{minted['id']}")).status_code == 204
            assert (await script.get("/api/whoami")).status_code == 401
        assert (await bob.delete(f"/api/tokens/{minted['id']}")).status_code == 204, "a repeat changes nothing"
        listed = (await bob.get("/api/tokens")).text
        assert minted["token"] not in listed
        assert "secret" not in listed


async def test_first_administrator_is_created_once_and_can_sign_in(database: str) -> None:
    async with open_site(database, accounts=False) as running:
        accounts = running.api.accounts
        first = await accounts.prepare_first_administrator()
        assert first is not None
        assert first.password not in repr(first)
        assert first.token not in repr(first)
        late = await accounts.prepare_first_administrator()
        assert late is not None
        assert await accounts.create_first_administrator(first)
        assert not await accounts.create_first_administrator(late), "another replica was faster"
        assert await accounts.prepare_first_administrator() is None
        assert (await accounts.user_of_token(first.token)).role == "admin"
        users, _ = await running.storage.list_users(Page())
        assert len(users) == 1


async def test_secrets_appear_in_no_answer_and_no_log(database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """R-CRD-05: shown once, where minted; never in a listing, an error or the log."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        minted = (await http.post("/api/fleets/lab/join-tokens")).json()
        assert minted["token"] in minted["command"]
        texts = [(await http.get(path)).text for path in ("/api/fleets/lab/join-tokens", "/api/fleets/lab", "/api/tokens", "/metrics")]
        texts.append((await http.post("/api/fleets/lab/nodes", json={"token": minted["token"]})).text)
        texts.append((await http.post("/api/auth/login", json={"username": "ada", "password": PASSWORD + "x"})).text)
        texts.append((await http.post("/api/jobs", json=job_spec(env={"HF_TOKEN": "hf_secret"}))).text)
        logged = "".join(capfd.readouterr())
        for secret in (minted["token"], running.admin_token, running.user_token, PASSWORD):
            assert not any(secret in text for text in texts)
            assert secret not in logged
        assert "hf_secret" not in logged
