"""Plans of every version stay readable, and a workload is told where its members meet (R-LCH-01, R-LCH-09, R-LCH-11)."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.plan import PLAN_VERSION, MemberPlan, PlanSight, plan_bytes, plan_digest, read_plan, sight, workload_env

GOLDEN = Path(__file__).parents[1] / "golden"
OURS = {
    "EPOCHS": "3",
    "TUNEPLANE_JOB_ID": "job-q3v",
    "TUNEPLANE_ATTEMPT": "1",
    "TUNEPLANE_OUTPUT_DIR": "/srv/tuneplane/jobs/job-q3v/job-q3v-1",
    "TUNEPLANE_ORCHESTRATOR": "process-group",
}


def golden(version: int) -> MemberPlan:
    data = (GOLDEN / f"plan-{version}.json").read_bytes()
    return read_plan(data, plan_digest(data))


def test_plan_of_version_1_is_still_read_and_its_workload_gets_what_it_got() -> None:
    """A Node that was updated holds plans of before: their members go on, with the variables of then."""
    plan = golden(1)
    assert (plan.version, plan.main_port, plan.interface) == (1, 0, None)
    ranks = {"TUNEPLANE_MACHINE_RANK": "0", "TUNEPLANE_MACHINE_COUNT": "1"}
    assert workload_env(plan) == {**OURS, **ranks, "TUNEPLANE_MEMBER": "job-q3v-1-0"}


def test_plan_of_a_gang_tells_where_the_members_meet_and_by_which_interface() -> None:
    """R-LCH-09, R-LCH-11, L-H5: one numeric address and leased port for all, the interface named to NCCL and Gloo alike."""
    assert workload_env(golden(2)) == {
        **OURS,
        "TUNEPLANE_MEMBER": "job-q3v-1-1",
        "TUNEPLANE_MACHINE_RANK": "1",
        "TUNEPLANE_MACHINE_COUNT": "2",
        "TUNEPLANE_MAIN_PROCESS_IP": "10.0.0.1",
        "TUNEPLANE_MAIN_PROCESS_PORT": "20999",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20999",
        "NODE_RANK": "1",
        "NNODES": "2",
        "NCCL_SOCKET_IFNAME": "bond0",
        "GLOO_SOCKET_IFNAME": "bond0",
    }


def test_plan_bytes_of_the_present_version_are_the_golden_ones() -> None:
    """What another release of the Node reads. A change here is a new version, with a golden file of its own."""
    plan = golden(PLAN_VERSION)
    assert plan_bytes(plan) == (GOLDEN / f"plan-{PLAN_VERSION}.json").read_bytes()


def test_plan_the_users_variables_never_replace_ours() -> None:
    plan = attrs.evolve(golden(2), env={"MASTER_PORT": "29500", "OTHER": "1"})
    assert (workload_env(plan)["MASTER_PORT"], workload_env(plan)["OTHER"]) == ("20999", "1")


@pytest.mark.parametrize("version", [3, 0, "2", True, None, [2]])
def test_plan_of_an_unknown_version_is_refused_by_that_name(version: object) -> None:
    said = json.loads((GOLDEN / "plan-2.json").read_bytes()) | {"version": version, "field_of_tomorrow": 1}
    data = json.dumps(said).encode()
    with pytest.raises(InvalidInput) as caught:
        read_plan(data, plan_digest(data))
    assert caught.value.field == "plan.version"


def test_plan_is_shown_of_any_version_and_of_bytes_that_are_none() -> None:
    assert sight((GOLDEN / "plan-1.json").read_bytes()) == PlanSight(
        gpu_uuids=("GPU-0",), output_dir="/srv/tuneplane/jobs/job-q3v/job-q3v-1"
    )
    seen = sight((GOLDEN / "plan-2.json").read_bytes())
    assert (seen.address, seen.main_address, seen.main_port, seen.interface) == ("10.0.0.2", "10.0.0.1", 20999, "bond0")
    for data in (b"", b"\xff", b"[1]", b"null"):
        assert sight(data) == PlanSight()
