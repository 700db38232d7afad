"""What the members of a Ray gang lease and what their runner is told (R-LCH-09, L-H3, L-H5, L-H6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.test_plan import golden
from tuneplane.domain.jobspec import RAY_MEMORY_LEAST, SIGNALS
from tuneplane.domain.plan import MemberPlan, workload_env
from tuneplane.domain.ray import (
    EXIT_REASONS,
    FIXED_PORTS,
    OBJECT_STORE_LEAST,
    container_command,
    exit_reason,
    object_store_bytes,
    plan_problem,
    ray_cpus,
    ray_ports,
    runner_settings,
)
from tuneplane.nodeside import ray_runner

HEAD_PORTS = tuple(range(20000, 20064))
MEMBER_PORTS = tuple(range(20640, 20704))


def ray_plan(rank: int, **changes: Any) -> MemberPlan:
    """Of a gang of two on 10.0.0.1 and 10.0.0.2."""
    plan = attrs.evolve(
        golden(2),
        orchestrator="ray",
        ray_version="2.60.0",
        rank=rank,
        address=f"10.0.0.{rank + 1}",
        main_address="10.0.0.1",
        main_port=HEAD_PORTS[0],
        ports=MEMBER_PORTS if rank else HEAD_PORTS,
    )
    return attrs.evolve(plan, **changes)


def options(plan: MemberPlan) -> dict[str, str]:
    return dict(option.partition("=")[::2] for option in runner_settings(plan)["options"])


def _numbers(value: Any) -> set[int]:
    """Every port-like number anywhere in ``value``."""
    if isinstance(value, dict):
        return set().union(*(_numbers(each) for each in value.values()))
    if isinstance(value, list):
        return set().union(*(_numbers(each) for each in value)) if value else set()
    text = str(value)
    return {int(word) for word in text.replace(":", " ").replace("=", " ").split() if word.isdecimal() and 1024 <= int(word) <= 65535}


@given(st.integers(10, 4_096_000))
def test_ray_ports_suffice_for_a_busy_and_a_waiting_worker_a_cpu(cpu_millis: int) -> None:
    """L-H3: every port that Ray opens is one of the block."""
    count = ray_ports(cpu_millis)
    assert count % 32 == 0
    assert count - len(FIXED_PORTS) >= 2 * ray_cpus(cpu_millis) + 32
    assert ray_ports(cpu_millis + 1000) >= count


@pytest.mark.parametrize(("cpu_millis", "ports"), [(10, 64), (1000, 64), (8000, 64), (64_000, 192), (128_000, 320)])
def test_ray_ports_of_usual_machines(cpu_millis: int, ports: int) -> None:
    """A Node's usual range has 1,000."""
    assert ray_ports(cpu_millis) == ports


@pytest.mark.parametrize("rank", [0, 1])
def test_ray_runner_is_given_no_port_but_leased_ones(rank: int) -> None:
    """L-H3: no port of two gangs can meet, because each of them is in its own member's block, or is the head's first."""
    plan = ray_plan(rank)
    settings = runner_settings(plan)
    assert _numbers({key: settings[key] for key in ("options", "client_port", "fixed_ports", "worker_ports", "head", "ray_address")}) == {
        *plan.ports,
        plan.main_port,
    }
    assert {settings["environment"][name] for name in ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")} <= {str(p) for p in plan.ports}
    assert not set(settings["fixed_ports"]) & set(settings["worker_ports"])


def test_ray_head_listens_where_the_plan_says() -> None:
    """L-H5, L-H6: Ray's node address is the plan's, never what it finds out about the machine by itself."""
    head, member = options(ray_plan(0)), options(ray_plan(1))
    assert (head["--port"], head["--node-ip-address"], "--head" in head) == ("20000", "10.0.0.1", True)
    assert (member["--address"], member["--node-ip-address"], "--head" in member) == ("10.0.0.1:20000", "10.0.0.2", False)
    assert options(ray_plan(1, main_address="fd00::1"))["--address"] == "[fd00::1]:20000"


def test_ray_counts_what_the_container_may_use() -> None:
    plan = ray_plan(1, cpu_millis=7900, memory_bytes=10 * 10**9, gpu_uuids=("GPU-a", "GPU-b"))
    told = options(plan)
    assert (told["--num-cpus"], told["--num-gpus"], told["--object-store-memory"]) == ("7", "2", "3000000000")
    assert json.loads(told["--resources"]) == {"tuneplane_rank_1": 1}
    assert options(ray_plan(0, cpu_millis=100))["--num-cpus"] == "1"
    assert object_store_bytes(0) == OBJECT_STORE_LEAST


def test_ray_object_store_fits_into_the_shared_memory_of_the_smallest_job() -> None:
    """The container's /dev/shm is half of its memory (nodeside/engine_specs.py)."""
    assert 75 << 20 <= object_store_bytes(RAY_MEMORY_LEAST) <= RAY_MEMORY_LEAST // 2


def test_ray_container_runs_the_runner_which_runs_the_command() -> None:
    program, runner, settings, *command = container_command(ray_plan(0), "/tuneplane/plan")
    assert (program, runner, command) == ("python3", "/tuneplane/plan/ray_runner.py", ["python", "train.py"])
    assert json.loads(settings) == runner_settings(ray_plan(0))
    assert "EPOCHS" not in settings, "the job's variables, which may hold secrets, stand in no command line"


def test_ray_member_is_not_told_a_meeting_point_of_torch() -> None:
    """Ray's own server answers at the main port; libraries that talk over a named interface are told that all the same."""
    env = workload_env(ray_plan(1))
    assert env["TUNEPLANE_ORCHESTRATOR"] == "ray"
    assert (env["TUNEPLANE_MAIN_PROCESS_IP"], env["TUNEPLANE_MAIN_PROCESS_PORT"]) == ("10.0.0.1", "20000")
    assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == "bond0"
    assert not {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES"} & set(env)


def test_ray_plan_without_enough_ports_is_named() -> None:
    assert not plan_problem(ray_plan(1))
    assert not plan_problem(golden(2))
    assert "more than 11 ports" in plan_problem(ray_plan(0, ports=tuple(range(20000, 20011))))
    assert "more than 11 ports" in plan_problem(ray_plan(0, ports=(20000,) * 64))


def test_ray_exit_codes_of_the_runner_get_reasons_and_those_of_commands_do_not() -> None:
    runner = {ray_runner.VERSION, ray_runner.PORT_TAKEN, ray_runner.START_FAILED, ray_runner.PEERS_MISSING, ray_runner.LOST}
    assert set(EXIT_REASONS) == runner
    code, detail = exit_reason(ray_plan(1), ray_runner.VERSION)
    assert code == "ray-version"
    assert "job-q3v-1-1 ended with exit code 91" in detail
    assert exit_reason(golden(2), ray_runner.VERSION) == ("", "")
    assert exit_reason(ray_plan(1), 1) == ("", "")


def test_ray_runner_passes_on_every_signal_that_a_job_may_name() -> None:
    """SIGKILL takes no handling."""
    assert {number.name for number in ray_runner.PASSED_ON} == SIGNALS - {"SIGKILL"}


def test_ray_runner_is_one_file_that_old_pythons_read() -> None:
    """It runs on the image's Python: nothing of ours, nothing but the standard library, annotations unread."""
    source = Path(ray_runner.__file__).read_text(encoding="utf-8")
    assert "from __future__ import annotations" in source
    assert "import tuneplane" not in source
    assert "from tuneplane" not in source
    compile(source, "ray_runner.py", "exec", dont_inherit=True)
