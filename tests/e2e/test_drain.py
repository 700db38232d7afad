"""A machine that leaves: drained from itself while it works, on the real system (L-E15, L-F1, L-F2, L-F4, R-LIV-04, R-LIV-05)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.evidence import Witness, assert_ran_once
from tests.support.system import WholeSystem, wait_for
from tuneplane.app.client import ApiRefused

pytestmark = [pytest.mark.e2e]
COMMAND = [sys.executable, "-m", "tuneplane.app.node_cli", "drain"]


@pytest.fixture
def whole(system: WholeSystem) -> Iterator[WholeSystem]:
    """The session's system; its Node takes work again afterwards."""
    system.wait_ready()
    yield system
    subprocess.run([*COMMAND, "--cancel", "--wait", "--timeout", "30"], env=system.processes["node"].env, check=True)
    system.wait_ready()


def test_a_machine_finishes_what_it_has_takes_no_more_and_says_when_it_is_done(whole: WholeSystem) -> None:
    """Nothing is killed, the end is confirmed before it says so, and an operator cannot remove it meanwhile."""
    witness = Witness.open(whole)
    job = whole.sh(witness.script(0))
    whole.wait_job(job, "running")
    witness.wait_started()
    env = whole.processes["node"].env
    waiting = subprocess.Popen([*COMMAND, "--wait", "--json", "--reason", "new disks"], env=env, stdout=subprocess.PIPE, text=True)
    try:

        def draining() -> tuple[dict | None, object]:
            scheduling = whole.client.get(f"/api/nodes/{whole.node_id}")["scheduling"]
            return (scheduling if scheduling["state"] == "draining" else None), scheduling

        scheduling = wait_for("the Node to be draining", draining)
        assert (scheduling["drained"], scheduling["left"]) == (False, [{"member": f"{job}-1-0", "phase": "running"}])
        assert [cordon["owner"] for cordon in scheduling["cordons"]] == ["machine"]
        with pytest.raises(ApiRefused, match="members"):
            whole.client.delete(f"/api/nodes/{whole.node_id}")
        assert waiting.poll() is None
        witness.release()
        whole.wait_job(job, "succeeded")
        said, _ = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
    assert waiting.returncode == 0
    assert (json.loads(said)["drained"], json.loads(said)["left"]) == (True, [])
    assert whole.client.get(f"/api/nodes/{whole.node_id}")["scheduling"]["drained"] is True
    assert_ran_once(whole, job, witness)
