"""Enrolment by the command line against a running console: once, verified, and with every refusal in a sentence (R-ENR)."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.podman import open_podman
from tests.support.system import FLEET, WholeSystem, wait_for
from tuneplane.app.client import ApiRefused

pytestmark = [pytest.mark.e2e]

PROGRAM = str(Path(sys.executable).with_name("tuneplane-node"))
SECONDS = 90


class Machine:
    """A machine that may join: its own state directory, the system's container runtime (a join only looks at it)."""

    def __init__(self, system: WholeSystem, state: Path, **settings: str) -> None:
        self.system, self.state = system, state
        base = {"PATH": "/usr/bin:/bin", "HOME": str(state.parent), **system.node_settings, "TUNEPLANE_NODE_STATE_DIR": str(state)}
        self.env = {name: value for name, value in {**base, **settings}.items() if value}

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **settings}
        command = [PROGRAM, *arguments]
        cwd = self.state.parent
        return subprocess.run(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)

    def join(self, token: str, *more: str, fleet: str = FLEET, server: str = "") -> subprocess.CompletedProcess[str]:
        url = server or self.system.console_url
        return self.run("join", "--server", url, *more, TUNEPLANE_FLEET=fleet, TUNEPLANE_JOIN_TOKEN=token)

    def identity(self) -> dict[str, Any]:
        return dict(json.loads((self.state / "identity.json").read_text()))


def _token(system: WholeSystem, fleet: str = FLEET) -> str:
    return str(system.client.post(f"/api/fleets/{fleet}/join-tokens")["token"])


@pytest.fixture
def machine(system: WholeSystem, tmp_path: Path) -> Machine:
    return Machine(system, tmp_path / "state")


def _remove(system: WholeSystem, node: str) -> None:
    system.client.delete(f"/api/nodes/{node}?force=true")


def test_join_writes_a_private_identity_and_shows_no_secret(system: WholeSystem, machine: Machine) -> None:
    """R-ENR-04, R-TLS-04, R-CRD-05."""
    token = _token(system)
    done = machine.join(token)
    assert done.returncode == 0, done.stderr
    identity = machine.identity()
    assert stat.S_IMODE((machine.state / "identity.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(machine.state.stat().st_mode) == 0o700
    assert "BEGIN CERTIFICATE" in identity["gateway_trust_pem"]
    assert identity["gateway_target"] == system.settings["TUNEPLANE_NODE_GATEWAY_TARGET"]
    for secret in (token, identity["credential"]):
        assert secret not in done.stdout + done.stderr
    assert identity["node"] in done.stdout
    status = machine.run("status", "--json")
    assert status.returncode == 1  # enrolled, and no daemon runs
    assert json.loads(status.stdout)["node"] == identity["node"]
    _remove(system, identity["node"])


def _live_node(system: WholeSystem) -> tuple[Any, object]:
    nodes = system.client.list_all(f"/api/fleets/{FLEET}/nodes")
    return next((one for one in nodes if one["connection"]["state"] == "connected"), None), nodes


def test_join_where_another_live_node_answers_is_warned_about_and_not_refused(system: WholeSystem, machine: Machine) -> None:
    """R-ENR-07: an address is not an identity."""
    live = wait_for("a live Node", lambda: _live_node(system))
    done = machine.join(_token(system), "--address", live["address"])
    assert done.returncode == 0, done.stderr
    assert f"warning: another live Node already answers at {live['address']}: {live['id']}" in done.stderr
    _remove(system, machine.identity()["node"])


def test_join_of_an_enrolled_machine_is_refused_unless_forced(system: WholeSystem, machine: Machine) -> None:
    """R-ENR-04, R-ENR-14."""
    assert machine.join(_token(system)).returncode == 0
    first = machine.identity()["node"]
    token = _token(system)
    again = machine.join(token)
    assert (again.returncode, machine.identity()["node"]) == (2, first)
    assert "already enrolled" in again.stderr
    assert machine.join(token, "--force").returncode == 0  # the refusal burnt nothing
    second = machine.identity()["node"]
    assert second != first
    for node in (first, second):
        _remove(system, node)


def test_join_token_raced_by_two_machines_lets_exactly_one_in(system: WholeSystem, tmp_path: Path) -> None:
    """R-ENR-03."""
    token = _token(system)
    machines = [Machine(system, tmp_path / name) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda machine: machine.join(token), machines))
    assert sorted(result.returncode for result in done) == [0, 2]
    loser = next(result for result in done if result.returncode == 2)
    assert "used" in loser.stderr
    [winner] = [machine for machine in machines if (machine.state / "identity.json").exists()]
    _remove(system, winner.identity()["node"])


def test_join_token_that_is_revoked_or_foreign_is_refused_with_its_reason(system: WholeSystem, machine: Machine) -> None:
    """R-ENR-03."""
    minted = system.client.post(f"/api/fleets/{FLEET}/join-tokens")
    system.client.delete(f"/api/fleets/{FLEET}/join-tokens/{minted['id']}")
    revoked = machine.join(minted["token"])
    assert (revoked.returncode, "revoked" in revoked.stderr) == (2, True)
    system.client.post("/api/fleets", {"id": "other", "kind": "node", "capabilities": ["train"]})
    token = _token(system, "other")
    assert machine.join(token).returncode == 2
    assert not (machine.state / "identity.json").exists()
    assert machine.join(token, fleet="other").returncode == 0  # the refusal burnt nothing
    _remove(system, machine.identity()["node"])
    system.client.delete("/api/fleets/other")


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_fleet_that_is_not_of_machines_mints_no_join_token(system: WholeSystem, kind: str) -> None:
    """R-ENR-08."""
    system.client.post("/api/fleets", {"id": kind, "kind": kind, "capabilities": ["train"]})
    with pytest.raises(ApiRefused, match="node"):
        _token(system, kind)
    system.client.delete(f"/api/fleets/{kind}")


def test_join_over_plain_http_is_refused(machine: Machine) -> None:
    """R-ENR-02."""
    done = machine.join("tpj_x", server="http://127.0.0.1:1")
    assert (done.returncode, "https" in done.stderr) == (2, True)


def test_join_at_a_console_it_cannot_verify_sends_nothing(system: WholeSystem, tmp_path: Path) -> None:
    """R-ENR-02, L-A3: the reason is OpenSSL's own."""
    machine = Machine(system, tmp_path / "state", TUNEPLANE_NODE_ENROLLMENT_TRUST_BUNDLE="")
    token = _token(system)
    done = machine.join(token)
    assert done.returncode == 2
    assert "self-signed" in done.stderr or "local issuer" in done.stderr
    assert machine.join(token, "--trust-bundle", system.node_settings["TUNEPLANE_NODE_ENROLLMENT_TRUST_BUNDLE"]).returncode == 0
    _remove(system, machine.identity()["node"])


@pytest.mark.parametrize(("missing", "named"), [("TUNEPLANE_FLEET", "TUNEPLANE_FLEET"), ("TUNEPLANE_JOIN_TOKEN", "TUNEPLANE_JOIN_TOKEN")])
def test_join_without_fleet_or_token_names_the_variable(machine: Machine, missing: str, named: str) -> None:
    given = {"TUNEPLANE_FLEET": FLEET, "TUNEPLANE_JOIN_TOKEN": "tpj_x"} | {missing: ""}
    done = machine.run("join", "--server", "https://127.0.0.1:1", **given)
    assert (done.returncode, named in done.stderr) == (2, True)


def test_state_dir_that_is_unset_or_shared_is_refused(system: WholeSystem, tmp_path: Path) -> None:
    """R-ENR-04."""
    unset = Machine(system, tmp_path / "state", TUNEPLANE_NODE_STATE_DIR="").join("tpj_x")
    assert (unset.returncode, "TUNEPLANE_NODE_STATE_DIR must be set" in unset.stderr) == (2, True)
    shared = Machine(system, system.storage_root / "state")
    shared.state.parent.mkdir(exist_ok=True)
    done = shared.join("tpj_x")
    assert (done.returncode, "TUNEPLANE_NODE_STATE_DIR" in done.stderr) == (2, True)


def test_serve_on_a_machine_that_is_not_enrolled_says_so(machine: Machine) -> None:
    done = machine.run("serve")
    assert done.returncode == 2
    assert "enrol" in done.stderr.splitlines()[-1]


def test_second_daemon_on_the_same_state_is_refused(system: WholeSystem) -> None:
    """R-ENR-10."""
    done = Machine(system, Path(system.processes["node"].env["TUNEPLANE_NODE_STATE_DIR"])).run("serve")
    assert done.returncode == 2
    assert "already serves" in done.stderr.splitlines()[-1]


def test_daemon_on_a_runtime_managed_from_elsewhere_is_refused_by_its_directory(system: WholeSystem, machine: Machine) -> None:
    """R-ENR-10."""
    assert machine.join(_token(system)).returncode == 0
    done = machine.run("serve")
    assert done.returncode == 2
    assert system.processes["node"].env["TUNEPLANE_NODE_STATE_DIR"] in done.stderr
    _remove(system, machine.identity()["node"])


def test_node_without_budgets_or_storage_root_is_not_ready_and_says_why(system: WholeSystem, tmp_path: Path) -> None:
    """R-ENR-05, R-ENR-09, R-CRD-04: it is removed at the end, and its session ends with it."""
    elsewhere = tmp_path / "not-mounted"
    with open_podman(tmp_path) as podman:
        changed = {
            "TUNEPLANE_NODE_RUNTIME_SOCKET": str(podman.socket),
            "TUNEPLANE_STORAGE_ROOT": str(elsewhere),
            "TUNEPLANE_NODE_ADDRESS": "localhost",
        }
        system.enrol("node-bare", **changed)
        bare = system.processes["node-bare"]
        del bare.env["TUNEPLANE_NODE_CPUS"]
        del bare.env["TUNEPLANE_NODE_GPU_IDS"]
        system.start("node-bare")
        node = json.loads((Path(bare.env["TUNEPLANE_NODE_STATE_DIR"]) / "identity.json").read_text())["node"]

        def look() -> tuple[dict[str, Any] | None, object]:
            seen = system.client.get(f"/api/nodes/{node}")
            reasons = " ".join(seen["ready"]["reasons"])
            return (seen if all(name in reasons for name in ("TUNEPLANE_NODE_CPUS", "TUNEPLANE_NODE_GPU_IDS")) else None), seen

        seen = wait_for("the bare Node to name what it was not told", look)
        assert not seen["ready"]["value"]
        assert seen["connection"]["state"] == "connected"
        assert [cordon["owner"] for cordon in seen["scheduling"]["cordons"]] == ["storage"]
        _remove(system, node)
        wait_for("the removed Node's session to end", lambda: (True if "no session" in bare.tail() else None, bare.tail()))
        assert bare.child is not None
        assert bare.child.poll() is None  # it stays up, and says why (P-18)
        assert system.stop("node-bare") == 0
    del system.processes["node-bare"]
