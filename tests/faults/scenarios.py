"""How each fault point is reached: one short story of the real system a function, told around one strike.

Every story ends by :meth:`Rig.converge`: the launch has its true outcome, or ``lost`` where the strike lies between a
journalled intent and its only effect; at most one container was ever started, by the runtime's own record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.evidence import Witness, assert_ran_at_most_once
from tests.support.images import busybox_layer, image_archive
from tests.support.system import FLEET, free_port
from tuneplane.app.client import ApiClient, ApiRefused, Credentials
from tuneplane.domain import codec
from tuneplane.domain.frames import WIRE_PROTOCOL
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.jobs import JoinRequest

from .rig import Rig, Strike

Scenario = Callable[[Rig, Strike], None]

NO_SUCH_DIGEST = "@sha256:" + "0" * 64
LONG_AGO = "now() - interval '30 days'"


def _end(rig: Rig, strike: Strike, job: str, witness: Witness) -> None:
    """A job that ends with 0 ends so, or as lost where the strike says so."""
    if strike.lost:
        rig.converge(job, witness, "failed", exit_code=None, reason="lost")
    else:
        assert rig.converge(job, witness, "succeeded", exit_code=0) == 1


def launch(rig: Rig, strike: Strike) -> None:
    """A job from submission to clean-up."""
    witness = Witness.open(rig.system)
    rig.strike(strike)
    job = rig.submit(witness.script(0, waits=False))
    _end(rig, strike, job, witness)


def pull(rig: Rig, strike: Strike) -> None:
    """The same with an image that the machine does not have."""
    name = rig.fresh_name("image")
    archive = image_archive(
        rig.system.directory / f"{name}.tar", f"localhost/{name}:1", busybox_layer({"etc/which": name.encode()}), ["sh"]
    )
    image = rig.system.registry.push(archive, f"t/{name}:1")
    witness = Witness.open(rig.system)
    rig.strike(strike)
    job = rig.submit(witness.script(0, waits=False), runtime={"image": image})
    _end(rig, strike, job, witness)


def start(rig: Rig) -> tuple[str, Witness]:
    witness = Witness.open(rig.system)
    job = rig.submit(witness.script(0))
    rig.wait_state(job, "running")
    witness.wait_started()
    return job, witness


def release(rig: Rig, strike: Strike, job: str, witness: Witness) -> None:
    rig.wait_struck(strike)
    witness.release()
    _end(rig, strike, job, witness)
    assert not witness.signals()


def while_running(rig: Rig, strike: Strike) -> None:
    """What the processes write from time to time while a job runs."""
    job, witness = start(rig)
    rig.strike(strike)
    release(rig, strike, job, witness)


def stop(rig: Rig, strike: Strike) -> None:
    """A running job is stopped and heeds its signal."""
    job, witness = start(rig)
    rig.strike(strike)
    rig.stop(job)
    assert rig.converge(job, witness, "stopped", exit_code=143, reason="stopped") == 1
    assert witness.signals()


def stop_unheard(rig: Rig, strike: Strike) -> None:
    """P-02: the Prepare is marked as sent and never arrives; the Stop makes a tombstone of a member never heard of."""
    witness = Witness.open(rig.system)
    undelivered = Strike("control.send-command", "before", "gateway")
    rig.down.add("gateway")
    rig.strike(undelivered)
    job = rig.submit(witness.script(0, waits=False))
    rig.wait_struck(undelivered)
    rig.kill("gateway")
    rig.stop(job)
    rig.strike(strike)
    rig.arm("gateway")
    rig.bring_up("gateway")
    rig.wait_struck(strike)
    assert rig.converge(job, witness, "stopped", exit_code=None, reason="stopped") == 0


def stop_too_late(rig: Rig, strike: Strike) -> None:
    """The job has ended while the gateway was away; the Stop that follows finds nothing to do.

    The Node's report of the end would be there first, and settle the Stop: the database keeps it waiting.
    """
    job, witness = start(rig)
    rig.kill("gateway")
    witness.release()
    rig.wait(f"the container of {job} to go", lambda: (None if rig.system.containers(job) else True, rig.system.containers(job)))
    rig.stop(job)
    rig.strike(strike)
    with rig.reports_wait(job):
        rig.bring_up("gateway")
        rig.wait_struck(strike)
    assert rig.converge(job, witness, "stopped", exit_code=0) == 1


def retry(rig: Rig, strike: Strike) -> None:
    """A job whose image cannot be had is tried once more by a person, and not twice, however the request goes."""
    witness = Witness.open(rig.system)
    image = rig.system.image().split("@")[0] + NO_SUCH_DIGEST
    job = rig.submit(witness.script(0), runtime={"image": image})
    assert rig.converge(job, witness, "failed", exit_code=None, reason="image-unavailable") == 0
    rig.strike(strike)
    rig.ask(lambda: rig.system.client.post(f"/api/jobs/{job}/retry?after=1"))

    def look() -> tuple[bool | None, object]:
        seen = rig.job(job)
        return (seen["state"] == "failed" and len(seen["attempts"]) == 2) or None, seen

    rig.wait(f"{job} to have failed again", look)
    rig.wait_cleaned(job)
    assert not rig.holds(job)


def declare_lost(rig: Rig, strike: Strike) -> None:
    """P-11: an operator ends a member by his word while its daemon is dead. It still runs; the daemon returns and is told."""
    job, witness = start(rig)
    [member] = rig.job(job)["attempts"][0]["members"]
    rig.kill("node")

    def look() -> tuple[bool | None, object]:
        [seen] = rig.job(job)["attempts"][0]["members"]
        return (True if seen["node_silent_since"] else None), seen

    rig.wait(f"{member['node']} to be silent", look)
    rig.strike(strike)
    lose = f"/api/nodes/{member['node']}/members/{member['id']}/declare-lost"
    rig.ask_gone(lambda: rig.system.client.post(lose, {"reason": "the fault test says so"}))
    rig.wait_state(job, "failed")
    rig.bring_up("node")
    assert rig.converge(job, witness, "failed", exit_code=None, reason="declared-lost") == 1
    assert witness.signals()


def bad_image(rig: Rig, strike: Strike) -> None:
    """An image that cannot be had: the member is aborted, and nothing ever ran."""
    witness = Witness.open(rig.system)
    rig.strike(strike)
    image = rig.system.image().split("@")[0] + NO_SUCH_DIGEST
    job = rig.submit(witness.script(0), runtime={"image": image})
    assert rig.converge(job, witness, "failed", exit_code=None, reason="image-unavailable") == 0


def waiting(rig: Rig, strike: Strike) -> None:
    """A job that must wait says why, and runs when it need not any more."""
    witness = Witness.open(rig.system)
    [node] = rig.ask(rig.system.nodes)
    rig.ask(lambda: rig.system.client.patch(f"/api/nodes/{node['id']}", {"state": "cordoned"}))
    rig.strike(strike)
    job = rig.submit(witness.script(0, waits=False))
    rig.wait_struck(strike)
    rig.ask(lambda: rig.system.client.patch(f"/api/nodes/{node['id']}", {"state": "active"}))
    _end(rig, strike, job, witness)


def node_restarts(rig: Rig, strike: Strike) -> None:
    """The daemon leaves and comes back while a job runs."""
    job, witness = start(rig)
    rig.strike(strike)
    rig.take_down("node")
    rig.bring_up("node")
    release(rig, strike, job, witness)


def journal_of_an_older_node(rig: Rig, strike: Strike) -> None:
    """The daemon is replaced by a newer one while a job runs."""
    job, witness = start(rig)
    rig.strike(strike)
    rig.take_down("node")
    rig.sql_journal("DROP TABLE hold")
    rig.sql_journal("UPDATE meta SET schema_version = 1")
    rig.bring_up("node")
    release(rig, strike, job, witness)


def gateway_restarts(rig: Rig, strike: Strike) -> None:
    """The gateway leaves and comes back while a job runs."""
    job, witness = start(rig)
    rig.strike(strike)
    rig.take_down("gateway")
    rig.bring_up("gateway")
    release(rig, strike, job, witness)


def stop_stranger(rig: Rig, strike: Strike) -> None:
    """P-07: a container of ours that nobody knows runs on until an operator stops it; nothing of it is left, and work goes on."""
    [node] = rig.ask(rig.system.nodes)
    labels = {"io.tuneplane.node": node["id"], "io.tuneplane.member": "job-of-old-1-0"}
    flags = [part for name, value in labels.items() for part in ("--label", f"{name}={value}")]
    script = 'trap "exit 0" TERM; while :; do sleep 0.1; done'
    rig.system.podman.run("pull", "-q", "--tls-verify=false", rig.system.image())
    container = rig.system.podman.run("run", "-d", "--network=host", *flags, rig.system.image(), "sh", "-c", script).strip()
    rig.wait_strangers(container)
    rig.strike(strike)
    order = {"container": container, "member": "job-of-old-1-0"}
    rig.ask_gone(lambda: rig.system.client.post(f"/api/nodes/{node['id']}/stop-stranger", order))
    rig.wait_strangers()
    rig.wait_ready()
    then_launch(rig, strike)


def database_went_back(rig: Rig, strike: Strike) -> None:
    """P-07: the session's epoch is that of a restored database. What runs goes on; an operator accepts, and all is as before."""
    job, witness = start(rig)
    rig.strike(strike)
    rig.take_down("gateway")
    rig.sql("DELETE FROM session")
    rig.bring_up("gateway")
    node, hold = rig.wait_hold()
    assert not witness.signals()
    rig.ask_gone(lambda: rig.system.client.post(f"/api/nodes/{node}/accept-epoch", {"hold": hold}))
    rig.wait_ready()
    release(rig, strike, job, witness)


def journal_reverts(rig: Rig, strike: Strike) -> None:
    """P-12: the journal of a running member comes back from an older copy; the report tells, whatever the Hello said."""
    job, witness = start(rig)
    rig.wait_acknowledged(job)
    rig.strike(strike)
    rig.take_down("node")
    rig.sql_journal("UPDATE member SET revision = 1, record = json_set(record, '$.revision', 1) WHERE phase = 'running'")
    rig.bring_up("node")
    rig.wait_struck(strike)
    failed = rig.wait_state(job, "failed")
    [node] = rig.ask(rig.system.nodes)
    rig.ask(lambda: rig.system.client.patch(f"/api/nodes/{node['id']}", {"state": "active"}))  # also for the next case
    assert [cordon["owner"] for cordon in node["scheduling"]["cordons"]] == ["journal"]
    assert failed["reason_code"] == "member-unknown"
    assert failed["attempts"][0]["members"][0]["reason_code"] == "stopped"  # heeding its signal or not: a busy machine is slow
    rig.wait_cleaned(job)
    assert not rig.holds(job)
    assert assert_ran_at_most_once(rig.system, job, witness) == 1


def runtime_hangs(rig: Rig, strike: Strike) -> None:
    """The container runtime does not answer for a while: the inventory goes stale, the session stays."""
    job, witness = start(rig)
    rig.strike(strike)
    rig.system.podman.pause()
    try:
        rig.wait_struck(strike)
    finally:
        rig.system.podman.resume()
    release(rig, strike, job, witness)


def forget(rig: Rig, strike: Strike) -> None:
    """A job that ended long ago is forgotten by the Node: log, fence and record go."""
    witness = Witness.open(rig.system)
    job = rig.submit(witness.script(0, waits=False))
    assert rig.converge(job, witness, "succeeded", exit_code=0) == 1
    [member] = rig.job(job)["attempts"][0]["members"]
    rig.sql(f"UPDATE attempt SET ended_at = {LONG_AGO} WHERE job_id = '{job}'")
    rig.strike(strike)
    rig.take_down("worker")
    rig.bring_up("worker")  # retention looks at its start
    rig.wait_struck(strike)
    kept = rig.node_state_dir / "logs" / member["id"]

    def look() -> tuple[bool | None, object]:
        left = (rig.journal_phase(member["id"]), kept.exists(), [one["Names"] for one in rig.system.containers(job)])
        return (None if any(left) else True), left

    rig.wait(f"{member['id']} to be forgotten", look)
    assert rig.converge(job, witness, "succeeded", exit_code=0) == 1


# ---------------------------------------------------------------- operators


def then_launch(rig: Rig, strike: Strike) -> None:
    """After an operator's act the system still does its work."""
    assert strike.line in rig.struck(strike.process), f"{strike.line} was not reached"
    witness = Witness.open(rig.system)
    job = rig.submit(witness.script(0, waits=False))
    assert rig.converge(job, witness, "succeeded", exit_code=0) == 1


def _as(rig: Rig, token: str) -> ApiClient:
    ca_pem = (rig.system.directory / "data" / "console-ca.pem").read_text()
    return ApiClient(Credentials(url=rig.system.console_url, token=token, ca_pem=ca_pem))


def create_token(rig: Rig, strike: Strike) -> None:
    rig.strike(strike)
    token = rig.ask(lambda: rig.system.client.post("/api/tokens", {"name": "struck"}))["token"]
    with _as(rig, token) as client:
        assert rig.ask(lambda: client.get("/api/whoami"))["username"] == "admin"
    then_launch(rig, strike)


def use_token(rig: Rig, strike: Strike) -> None:
    token = rig.ask(lambda: rig.system.client.post("/api/tokens", {"name": "used"}))["token"]
    rig.strike(strike)
    with _as(rig, token) as client:
        assert rig.ask(lambda: client.get("/api/whoami"))["username"] == "admin"
    then_launch(rig, strike)


def revoke_token(rig: Rig, strike: Strike) -> None:
    made = rig.ask(lambda: rig.system.client.post("/api/tokens", {"name": "revoked"}))
    rig.strike(strike)
    rig.ask_gone(lambda: rig.system.client.delete(f"/api/tokens/{made['id']}"))
    with _as(rig, made["token"]) as client:
        refused(rig, lambda: client.get("/api/whoami"), 401)
    then_launch(rig, strike)


def refused(rig: Rig, call: Callable[[], object], status: int) -> None:
    with pytest.raises(ApiRefused) as caught:
        rig.ask(call)
    assert caught.value.status == status, caught.value


def _mint(rig: Rig) -> dict[str, Any]:
    return dict(rig.ask(lambda: rig.system.client.post(f"/api/fleets/{FLEET}/join-tokens")))


def mint_join_token(rig: Rig, strike: Strike) -> None:
    rig.strike(strike)
    made = _mint(rig)
    listed = rig.ask(lambda: rig.system.client.get(f"/api/fleets/{FLEET}/join-tokens"))["items"]
    assert [token["state"] for token in listed if token["id"] == made["id"]] == ["unused"]
    then_launch(rig, strike)


def revoke_join_token(rig: Rig, strike: Strike) -> None:
    made = _mint(rig)
    rig.strike(strike)
    rig.ask_gone(lambda: rig.system.client.delete(f"/api/fleets/{FLEET}/join-tokens/{made['id']}"))
    listed = rig.ask(lambda: rig.system.client.get(f"/api/fleets/{FLEET}/join-tokens"))["items"]
    assert [token["state"] for token in listed if token["id"] == made["id"]] == ["revoked"]
    then_launch(rig, strike)


def refuse_join(rig: Rig, strike: Strike) -> None:
    """L-A13: a machine comes with a revoked Join Token; it is refused, and the audit log tells of it."""
    made = _mint(rig)
    rig.ask_gone(lambda: rig.system.client.delete(f"/api/fleets/{FLEET}/join-tokens/{made['id']}"))
    inventory = Inventory(hostname="late", node_version="1", cpu_count=1, memory_bytes=10**9)
    body = JoinRequest(
        token=made["token"], join_key="k" * 32, try_=1, address="late", node_version="1", protocol=WIRE_PROTOCOL, inventory=inventory
    )
    rig.strike(strike)
    refused(rig, lambda: rig.system.client.post(f"/api/fleets/{FLEET}/nodes", codec.encode(body)), 403)
    assert "token-revoked" in rig.sql("SELECT string_agg(detail, ';') FROM audit WHERE action = 'node.join-refused'")
    then_launch(rig, strike)


def set_node_state(rig: Rig, strike: Strike) -> None:
    [node] = rig.ask(rig.system.nodes)
    rig.strike(strike)
    for state in ("draining", "active"):
        rig.ask(lambda state=state: rig.system.client.patch(f"/api/nodes/{node['id']}", {"state": state}))  # type: ignore[misc]
        assert rig.ask(lambda: rig.system.client.get(f"/api/nodes/{node['id']}"))["scheduling"]["state"] == state
    then_launch(rig, strike)


def machine_drain(rig: Rig, strike: Strike) -> None:
    """L-E15: drained on the machine itself, and taken back: both are remembered and told, whatever dies on the way."""
    [node] = rig.ask(rig.system.nodes)
    env = rig.system.processes["node"].env
    rig.strike(strike)
    for options, state in ((["--wait"], "draining"), (["--wait", "--cancel"], "active")):
        rig.run_until_done(rig.add("drain", ["tuneplane-node", "drain", *options], env, "drain"))
        assert rig.ask(lambda: rig.system.client.get(f"/api/nodes/{node['id']}"))["scheduling"]["state"] == state
    rig.wait_ready()
    then_launch(rig, strike)


def delete_node(rig: Rig, strike: Strike) -> None:
    _, node = _join(rig)
    rig.strike(strike)
    rig.ask_gone(lambda: rig.system.client.delete(f"/api/nodes/{node}?force=true"))
    refused(rig, lambda: rig.system.client.get(f"/api/nodes/{node}"), 404)
    then_launch(rig, strike)


# ---------------------------------------------------------------- enrolment


def _join(rig: Rig) -> tuple[str, str]:
    """Run ``tuneplane-node join`` until it is done; the new process's name (not started) and its Node's id."""
    token = _mint(rig)["token"]
    name = rig.fresh_name("node-")
    state_dir = rig.system.directory / f"{name}-state"
    env = {**rig.system.node_settings, "TUNEPLANE_NODE_STATE_DIR": str(state_dir)}
    join = rig.add("join", ["tuneplane-node", "join", "--server", rig.system.console_url], env, "join")
    join.env.update({"TUNEPLANE_FLEET": FLEET, "TUNEPLANE_JOIN_TOKEN": token})
    rig.run_until_done(join, done_already="already enrolled")
    rig.add(name, ["tuneplane-node", "serve"], env, "node")
    return name, str(json.loads((state_dir / "identity.json").read_text())["node"])


def join(rig: Rig, strike: Strike) -> None:
    """A machine joins, once whatever happens, and takes the place of the one before it."""
    before = {node["id"] for node in rig.ask(rig.system.nodes)}
    if strike.process != "node":
        rig.strike(strike)
    name, node = _join(rig)
    assert {one["id"] for one in rig.ask(rig.system.nodes)} - before == {node}
    rig.take_down("node")
    if strike.process == "node":
        rig.strike(strike)
    rig.system.processes["node"] = rig.system.processes.pop(name)
    rig.bring_up("node")
    for old in before:
        rig.ask_gone(lambda old=old: rig.system.client.delete(f"/api/nodes/{old}?force=true"))  # type: ignore[misc]
    rig.wait_ready()
    then_launch(rig, strike)


# ---------------------------------------------------------------- first starts


def first_start(rig: Rig, strike: Strike) -> None:
    """A new control plane on an empty database: migrated, started, and the secrets that it printed open it."""
    place = rig.system.directory / rig.fresh_name("first-")
    url = f"127.0.0.1:{free_port()}"
    settings = {**rig.system.settings, "TUNEPLANE_DATA_DIR": str(place), "TUNEPLANE_CONSOLE_LISTEN": url}
    with rig.system.postgres.fresh_database() as dsn:
        env = {**settings, "TUNEPLANE_DATABASE_URL": dsn, "TUNEPLANE_PUBLIC_URL": f"https://{url}"}
        rig.strike(strike)
        rig.run_until_done(rig.add("first", ["tuneplane", "migrate"], env, "first"))
        rig.add("first", ["tuneplane", "api"], env, "first")
        _comes_up_twice(rig, strike, "first", place, f"https://{url}")


def embedded(rig: Rig, strike: Strike) -> None:
    """``tuneplane up`` on an empty directory: its own PostgreSQL, made and started once whatever happens."""
    place = rig.system.directory / rig.fresh_name("up-")
    console, gateway = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    env = {
        **rig.system.settings,
        "TUNEPLANE_DATA_DIR": str(place),
        "TUNEPLANE_CONSOLE_LISTEN": console,
        "TUNEPLANE_PUBLIC_URL": f"https://{console}",
        "TUNEPLANE_GATEWAY_LISTEN": gateway,
        "TUNEPLANE_NODE_GATEWAY_TARGET": gateway,
    }
    del env["TUNEPLANE_DATABASE_URL"]
    rig.strike(strike)
    rig.add("up", ["tuneplane", "up"], env, "up")
    _comes_up_twice(rig, strike, "up", place, f"https://{console}")
    assert not (place / "postgres" / "data" / "postmaster.pid").exists()


def _comes_up_twice(rig: Rig, strike: Strike, name: str, place: Path, url: str) -> None:
    """Through the fault, and once more without one: what the first left behind does not stand in the second's way."""
    for _ in range(2):
        rig.bring_up(name)
        assert strike.line in rig.struck(name), f"{strike.line} was not reached"
        admin = json.loads((place / "admin.json").read_text())
        with ApiClient(Credentials(url=url, token=admin["token"], ca_pem=(place / "console-ca.pem").read_text())) as client:
            assert client.get("/api/whoami")["role"] == "admin"
            client.log_in(admin["username"], admin["password"])
        rig.take_down(name)
    del rig.system.processes[name]
    rig.down.discard(name)
