"""R-ADM-03: the OpenAPI document is held against the running server, in both directions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import trio
from attrs import evolve

from tests.web.audited import NO_ACT, Audited
from tests.web.documented import DOCUMENT
from tests.web.events import open_events
from tests.web.support import PASSWORD, Running, job_spec, make_app, now, open_server, open_site
from tests.web.world import INVENTORY, connect_node, drive, join_body, look, place_job
from tuneplane import __version__
from tuneplane.domain import codec
from tuneplane.domain.card_grants import change_id, sight_of
from tuneplane.domain.ids import FleetId, JobId, NodeId
from tuneplane.domain.inventory import Budgets, EpochHold, Gpu, Stranger
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.web import openapi
from tuneplane.web.routes import API_ROUTES, ROUTES

COPY = Path(__file__).parents[2] / "schemas" / "openapi.json"
P = MemberPhase
START = datetime(2026, 1, 1, tzinfo=UTC)


def test_document_checked_in_copy_is_fresh() -> None:
    """Regenerate with ``python -m tuneplane.web.openapi > schemas/openapi.json``."""
    assert COPY.read_bytes() == openapi.spell(openapi.document(API_ROUTES, __version__))


def test_document_objects_are_closed_and_references_resolve() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name, schema in schemas.items():
        assert schema["additionalProperties"] is False, name
    text = openapi.spell(DOCUMENT).decode()
    for reference in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert reference in schemas


def test_document_operation_ids_are_unique() -> None:
    names = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


async def test_document_lists_every_route_that_is_served(database: str) -> None:
    async with open_site(database) as running:
        app = make_app(running)
        served = {(method, str(rule)) for rule in app.url_map.iter_rules() for method in rule.methods - {"HEAD"}}
    pages = {(route.method, route.rule) for route in ROUTES if route.page is not None}
    paths = {path.replace("{", "<").replace("}", ">"): operations for path, operations in DOCUMENT["paths"].items()}
    documented = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    assert served - pages == documented


@pytest.mark.postgres
@pytest.mark.seconds(60)
async def test_every_documented_route_answers_as_documented_and_every_act_leaves_one_audit_line(database: str, tmp_path: Path) -> None:
    """R-ADM-02, L-L8, R-ADM-03: walks through all of them; the client's hooks compare each answer with the document, and the audit
    log with what was asked for."""
    async with open_server(database, tmp_path) as running:
        running.audited = Audited(running.storage)
        await running.audited.start()
        async with running.admin() as http:
            await _walk(running, http)
        done = {(method, path) for method, path, status in running.documented.seen if status < 300}
        assert done == {(method.upper(), path) for path, operations in DOCUMENT["paths"].items() for method in operations}
        told = {(action, forced) for _, action, _, forced in running.audited.lines}
        promised = {one for path in DOCUMENT["paths"].values() for route in path.values() for one in route.get("x-audit-actions", ())}
        other_ways = {"node.active", "node.cordoned", "card.uncordon"}  # of routes that were driven another way
        assert {action for action, _ in told} | other_ways == promised
        assert {action for action, forced in told if forced} == {"member.declare-lost"}


def test_document_says_of_every_unsafe_route_what_it_leaves_in_the_audit_log() -> None:
    """R-ADM-02: a new route that says nothing fails here; one that says it and does not write it fails in the walk."""
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            is_act = method not in ("get", "head") and (method.upper(), path) not in NO_ACT
            assert bool(operation.get("x-audit-actions")) is is_act, f"{method} {path}"


async def _walk(running: Running, http: httpx.AsyncClient) -> None:
    """Every documented route, accepted at least once, and some refused."""
    for path in ("/healthz", "/readyz", "/metrics", "/api/version", "/api/openapi.json", "/api/whoami", "/api/tokens"):
        assert (await http.get(path)).status_code == 200, path
    token = (await http.post("/api/tokens", json={"name": "script"})).json()
    assert (await http.delete(f"/api/tokens/{token['id']}")).status_code == 204
    async with running.client() as stranger:
        signed_in = (await stranger.post("/api/auth/login", json={"username": "ada", "password": PASSWORD})).json()
        left = await stranger.post("/api/auth/logout", headers={"X-CSRF-Token": signed_in["csrf_token"]})
        assert left.status_code == 204

    await _people(http)
    made = await http.post("/api/fleets", json={"id": "lab", "kind": "node", "capabilities": ["train"]})
    assert made.status_code == 201
    assert made.headers["location"] == "/api/fleets/lab"
    assert (await http.get("/api/fleets")).json()["items"][0]["id"] == "lab"
    assert (await http.get("/api/fleets/lab")).status_code == 200
    assert (await http.patch("/api/fleets/lab", json={"capabilities": ["train", "eval"]})).status_code == 200
    series = {"series": "h100", "card_names": ["NVIDIA H100 PCIe"]}
    assert [(await http.post("/api/hardware", json=series)).status_code for _ in range(2)] == [201, 200]
    assert (await http.get("/api/hardware")).json() == {"items": [series], "next_cursor": None}
    assert (await http.delete("/api/hardware/h100")).status_code == 204
    minted = (await http.post("/api/fleets/lab/join-tokens")).json()
    spare = (await http.post("/api/fleets/lab/join-tokens")).json()
    assert (await http.get("/api/fleets/lab/join-tokens")).status_code == 200
    assert (await http.delete(f"/api/fleets/lab/join-tokens/{spare['id']}")).status_code == 204

    async with running.client() as machine:
        joined = (await machine.post("/api/fleets/lab/nodes", json=join_body(minted["token"]))).json()
    node = NodeId(joined["id"])
    epoch = await connect_node(running, FleetId("lab"), node, INVENTORY)
    assert (await http.get("/api/fleets/lab/nodes")).json()["items"][0]["ready"] == {"value": True, "reasons": []}
    await running.storage.look_around(False, now())
    assert (await http.get("/api/sight")).json()["judging"] is True
    assert (await http.get("/api/nodes")).status_code == 200
    assert (await http.get(f"/api/nodes/{node}")).status_code == 200

    assert (await http.get("/api/waiting")).status_code == 200
    assert (await http.post("/api/jobs/preview", json=job_spec())).json()["placed"] is True
    job = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
    member = await place_job(running, job, node)
    await drive(running, node, epoch, member, P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING)
    running.logs.write(member, b"hello\n")
    assert (await http.get("/api/jobs")).json()["items"][0]["state"] == "running"
    assert (await http.get(f"/api/jobs/{job}")).json()["attempts"][0]["members"][0]["phase"] == "running"
    assert (await http.get(f"/api/jobs/{job}/timeline")).json()["items"]
    assert (await http.get(f"/api/jobs/{job}/logs")).content == b"hello\n"
    assert (await http.post(f"/api/jobs/{job}/stop")).status_code == 202
    await drive(running, node, epoch, member, P.STOPPING, P.TERMINATED, exit_code=0, cleaned=True)
    assert (await http.get(f"/api/jobs/{job}")).json()["state"] == "stopped"
    await _lose_and_retry(running, http, node, epoch)
    with trio.fail_after(10):
        async with open_events(http, "/api/events"):
            running.documented.seen.add(("GET", "/api/events", 200))

    assert (await http.patch(f"/api/nodes/{node}", json={"state": "draining", "reason": "disk"})).status_code == 200
    stranger = Stranger(container="c1", name="tuneplane-job-x", member="job-x-1-0")
    await connect_node(running, FleetId("lab"), node, evolve(INVENTORY, strangers=(stranger,)))
    order = {"container": "c1", "member": "job-x-1-0"}
    assert (await http.post(f"/api/nodes/{node}/stop-stranger", json=order)).status_code == 202
    held = EpochHold(id="hold-1", known_epoch=9, told_epoch=1, since=START)
    await connect_node(running, FleetId("lab"), node, evolve(INVENTORY, hold=held, problems=(str(held),)))
    assert (await http.post(f"/api/nodes/{node}/accept-epoch", json={"hold": "hold-1"})).status_code == 200
    await _cordon_and_accept_cards(running, http, node)
    assert (await http.delete(f"/api/nodes/{node}")).status_code == 204
    assert (await http.delete("/api/fleets/lab")).status_code == 204


async def _people(http: httpx.AsyncClient) -> None:
    """Accounts and projects, with what is refused among them."""
    assert (await http.post("/api/users", json={"username": "cy", "password": PASSWORD})).status_code == 201
    assert (await http.post("/api/users", json={"username": "cy"})).json()["code"] == "exists"
    assert (await http.post("/api/users", json={"username": "Not A Name"})).status_code == 422
    assert (await http.patch("/api/users/cy", json={"role": "admin"})).json()["role"] == "admin"
    assert (await http.patch("/api/users/cy", json={"disabled": True, "role": "user"})).json()["disabled"] is True
    assert (await http.patch("/api/users/ada", json={"disabled": True})).json()["code"] == "last-admin"
    assert (await http.patch("/api/users/nobody", json={"disabled": True})).status_code == 404
    assert (await http.post("/api/projects", json={"id": "vision"})).status_code == 201
    assert (await http.post("/api/projects", json={"id": "vision"})).json()["code"] == "exists"
    assert (await http.put("/api/projects/vision/members/cy")).status_code == 204
    assert (await http.put("/api/projects/vision/members/nobody")).status_code == 404
    assert (await http.get("/api/users")).json()["items"][0]["projects"] == ["vision"]
    assert (await http.get("/api/projects")).json()["items"][0]["members"] == ["cy"]
    assert (await http.delete("/api/projects/vision/members/cy")).status_code == 204
    assert (await http.delete("/api/projects/vision/members/cy")).status_code == 404
    latest = (await http.get("/api/audit?limit=2")).json()["items"]
    assert [(line["action"], line["subject"], line["detail"]) for line in latest] == [
        ("project.remove-member", "vision", "cy"),
        ("project.add-member", "vision", "cy"),
    ]


async def _cordon_and_accept_cards(running: Running, http: httpx.AsyncClient, node: NodeId) -> None:
    """L-D1, L-D13: two cards, one put aside; then they have changed places."""
    two = evolve(INVENTORY, budgets=Budgets(cpu_millis=1, memory_bytes=1, gpu_indexes=(0, 1)))
    cards = [Gpu(index=0, uuid="GPU-a", name="H100", memory_bytes=1), Gpu(index=1, uuid="GPU-b", name="H100", memory_bytes=1)]
    await connect_node(running, FleetId("lab"), node, evolve(two, gpus=tuple(cards)))
    assert (await http.patch(f"/api/nodes/{node}/cards/GPU-a", json={"cordoned": True, "reason": "hot"})).status_code == 200
    swapped = evolve(two, gpus=tuple(evolve(card, index=1 - card.index) for card in cards))
    await connect_node(running, FleetId("lab"), node, swapped)
    assert (await http.post(f"/api/nodes/{node}/accept-cards", json={"change": change_id(sight_of(swapped))})).status_code == 200


async def _lose_and_retry(running: Running, http: httpx.AsyncClient, node: NodeId, epoch: int) -> None:
    """P-11: a job on a machine that falls silent, ended by an operator's word, tried again by a person's, then stopped."""
    job = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
    member = await place_job(running, job, node)
    await drive(running, node, epoch, member, P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING)
    lose = f"/api/nodes/{node}/members/{member}/declare-lost"
    assert (await http.post(lose, json={"reason": "burnt"})).json()["code"] == "node-live"
    assert (await http.post(f"/api/jobs/{job}/retry")).json()["code"] == "job-live"
    await running.storage.close_session(node, epoch, "cut", now())
    for blank in (" ", "\u200b\u3000"):
        assert (await http.post(lose, json={"reason": blank})).status_code == 422
    held = (await http.get(f"/api/jobs/{job}")).json()["attempts"][0]["waits_for"]
    assert [(reason["code"], reason["subject"]) for reason in held] == [("silent-node", node)]
    assert (await http.post(lose, json={"reason": "burnt"})).status_code == 204
    ended = (await http.post(lose, json={"reason": "burnt"})).json()
    assert (ended["code"], ended["detail"].split()[0]) == ("member-ended", member), "an id stays one that can be copied"
    await look(running)
    failed = (await http.get(f"/api/jobs/{job}")).json()
    assert (failed["state"], failed["reason_code"]) == ("failed", "declared-lost")
    for _ in range(2):
        again = await http.post(f"/api/jobs/{job}/retry")
        assert (again.status_code, again.json()["state"], again.json()["attempt_number"]) == (202, "queued", 1)
    assert (await http.post(f"/api/jobs/{job}/retry?after=1")).status_code == 202  # a repeat, which changes nothing
    assert (await http.post(f"/api/jobs/{job}/retry?after=0")).status_code == 422  # nobody can have seen that one fail
    audited = await running.storage._db.fetch("SELECT detail FROM audit WHERE action = 'job.retry' ORDER BY at")
    assert [row["detail"] for row in audited] == ["attempt 2"] * 3
    assert (await http.post(f"/api/jobs/{job}/stop")).json()["state"] == "stopped"
    assert (await http.post(f"/api/jobs/{job}/retry")).json()["code"] == "job-stopped"


def test_document_examples_of_the_interface_are_what_the_decoder_takes() -> None:
    """The schema and the decoder agree on the smallest JobSpec."""
    from tests.web.documented import validate
    from tuneplane.domain.jobspec import JobSpec

    validate(job_spec(), {"$ref": "#/components/schemas/JobSpecInput"})
    assert codec.decode(JobSpec, job_spec())
