"""The hook that the fault tests stand on: armed while running, strikes once, and leaves a trace of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuneplane.app.faults import Fault, install_fault_hook_from, read_fault
from tuneplane.app.settings import WrongSetting
from tuneplane.domain.faultpoint import AnswerLost, fault_point, install_fault_hook

POINT, OTHER = "storage.observe", "storage.submit"


@pytest.fixture(autouse=True)
def no_hook_stays() -> Iterator[None]:
    yield
    install_fault_hook(None)


def _install(plan: Path) -> None:
    install_fault_hook_from({"TUNEPLANE_FAULT_TESTING": "1", "TUNEPLANE_FAULT_PLAN": str(plan)})


def test_fault_plan_without_the_testing_variable_does_nothing(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text(f"{POINT}:lost\n")
    install_fault_hook_from({"TUNEPLANE_FAULT_PLAN": str(plan)})
    with fault_point(POINT):
        pass
    assert plan.read_text()


def test_lost_answer_strikes_after_the_step_once_and_leaves_its_line(tmp_path: Path) -> None:
    plan, done = tmp_path / "plan", []
    _install(plan)
    plan.write_text(f"{POINT}:lost:2\n{OTHER}:lost\n")  # armed while it runs
    with fault_point(OTHER), fault_point(POINT):
        done.append(1)
    with pytest.raises(AnswerLost), fault_point(POINT):
        done.append(2)
    with fault_point(POINT):
        done.append(3)
    assert done == [1, 2, 3]
    assert plan.read_text() == f"{OTHER}:lost\n"
    assert (tmp_path / "plan.struck").read_text() == f"{POINT}:lost:2\n"


@pytest.mark.parametrize(("moment", "durable"), [("before", False), ("after", True)])
def test_kill_strikes_on_its_side_of_the_step(tmp_path: Path, moment: str, durable: bool) -> None:
    plan, step = tmp_path / "plan", tmp_path / "step"
    plan.write_text(f"{POINT}:{moment}\n")
    program = (
        "import os, sys; from pathlib import Path; from tuneplane.app.faults import install_fault_hook_from;"
        "from tuneplane.domain.faultpoint import fault_point; install_fault_hook_from(os.environ)\n"
        f"with fault_point({POINT!r}): Path(sys.argv[1]).touch()\n"
    )
    env = {**os.environ, "TUNEPLANE_FAULT_TESTING": "1", "TUNEPLANE_FAULT_PLAN": str(plan)}
    runs = [subprocess.run([sys.executable, "-c", program, str(step)], env=env, timeout=30).returncode]
    assert step.exists() is durable
    runs += [subprocess.run([sys.executable, "-c", program, str(step)], env=env, timeout=30).returncode]
    assert runs == [-signal.SIGKILL, 0]
    assert step.exists()


def test_plan_is_checked_when_the_process_starts(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text("storage.no_such_point:before\n")
    with pytest.raises(WrongSetting, match="no_such_point"):
        _install(plan)
    assert read_fault(f"{POINT}:after:3") == Fault(POINT, "after", 3)


def test_every_point_passed_is_written_where_asked(tmp_path: Path) -> None:
    install_fault_hook_from({"TUNEPLANE_FAULT_TESTING": "1", "TUNEPLANE_FAULT_SEEN": str(tmp_path / "seen")})
    with fault_point(POINT):
        pass
    assert (tmp_path / "seen").read_text() == f"{POINT}:before\n{POINT}:after\n"
