"""The client commands as a person and a program use them: tables, ``--json``, exit status 0 done, 1 failed, 2 refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.system import FLEET, WholeSystem

pytestmark = [pytest.mark.e2e]

PROGRAM = str(Path(sys.executable).with_name("tuneplane"))


class Person:
    """Somebody at a terminal who has logged in."""

    def __init__(self, system: WholeSystem, home: Path) -> None:
        token = system.client._http.headers["Authorization"].removeprefix("Bearer ")
        self.env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "COLUMNS": "200"}
        ca = str(system.directory / "data" / "console-ca.pem")
        assert self.run("login", system.console_url, "--ca", ca, "--token-file", "-", given=token).returncode == 0

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run([PROGRAM, *arguments], env=self.env, input=given, capture_output=True, text=True, timeout=90)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def person(system: WholeSystem, tmp_path: Path) -> Person:
    return Person(system, tmp_path)


def _file(tmp_path: Path, spec: dict[str, Any]) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(spec))
    return str(path)


def test_submit_wait_shows_the_way_and_ends_with_zero(system: WholeSystem, person: Person, tmp_path: Path) -> None:
    done = person.run("submit", "--wait", _file(tmp_path, system.spec(["sh", "-c", "echo hi"])))
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout
    assert "succeeded" in done.stderr  # the last of the states it went through
    assert f"admitted to Fleet {FLEET}" in done.stderr


def test_submit_wait_of_a_failing_job_ends_with_one_and_the_reason(system: WholeSystem, person: Person, tmp_path: Path) -> None:
    done = person.run("submit", "--wait", _file(tmp_path, system.spec(["sh", "-c", "exit 5"])))
    assert done.returncode == 1
    assert "exit code 5" in done.stdout


def test_submit_of_a_spec_with_an_unknown_field_is_refused_by_name(system: WholeSystem, person: Person, tmp_path: Path) -> None:
    spec = system.spec(["true"])
    spec["spec"]["comand"] = ["true"]
    done = person.run("submit", _file(tmp_path, spec))
    assert done.returncode == 2
    assert "spec.comand" in done.stderr


def test_job_is_submitted_followed_and_stopped_by_commands(system: WholeSystem, person: Person, tmp_path: Path) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while true; do sleep 0.1; done"
    job = person.json("submit", _file(tmp_path, system.spec(["sh", "-c", script])))["id"]
    system.wait_log(job, b"up\n")
    follower = subprocess.Popen([PROGRAM, "logs", "-f", job], env=person.env, stdout=subprocess.PIPE)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"up\n"
    stopped = person.run("stop", "--wait", job)
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped by admin" in stopped.stdout
    rest, _ = follower.communicate(timeout=60)
    assert (rest, follower.returncode) == (b"bye\n", 0)
    assert person.json("jobs", job)["state"] == "stopped"
    assert person.run("logs", job).stdout == "up\nbye\n"
    assert person.run("logs", job, "--tail", "1").stdout == "bye\n"


def test_fleets_nodes_and_jobs_are_shown_as_tables_and_as_json(system: WholeSystem, person: Person) -> None:
    job = system.sh("true")
    system.wait_job(job)
    assert FLEET in person.run("fleets").stdout
    nodes = person.run("nodes", "--fleet", FLEET).stdout
    assert system.node_id in nodes
    assert "connected" in nodes
    assert job in person.run("jobs").stdout
    assert [fleet["id"] for fleet in person.json("fleets")] == [FLEET]
    assert person.json("nodes")[0]["ready"] == {"value": True, "reasons": []}
    assert job in [each["id"] for each in person.json("jobs")]


@pytest.mark.parametrize("arguments", [("stop", "job-none"), ("logs", "job-none"), ("jobs", "job-none"), ("nodes", "--fleet", "none")])
def test_what_does_not_exist_is_refused_with_two(person: Person, arguments: tuple[str, ...]) -> None:
    done = person.run(*arguments)
    assert done.returncode == 2
    assert "named" in done.stderr


@pytest.mark.parametrize("arguments", [("nonsense",), ("jobs", "--surprise"), ("submit",), ("submit", "/no/such/file")])
def test_wrong_usage_ends_with_two(person: Person, arguments: tuple[str, ...]) -> None:
    assert person.run(*arguments).returncode == 2


def test_user_who_is_no_administrator_may_submit_and_not_administer(system: WholeSystem, person: Person, tmp_path: Path) -> None:
    """R-FLT-05, R-ADM-01."""
    admin = {**person.env, **{name: system.settings[name] for name in ("TUNEPLANE_DATABASE_URL",)}}

    def server_side(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run([PROGRAM, *arguments], env=admin, input=given, capture_output=True, text=True, timeout=90)

    assert server_side("user", "add", "eve", given="a long enough password\n").returncode == 0
    token = server_side("token", "create", "--user", "eve").stdout.strip()
    ca = str(system.directory / "data" / "console-ca.pem")
    assert person.run("login", system.console_url, "--ca", ca, "--token-file", "-", given=token).returncode == 0
    for refused in (("fleets", "create", "mine"), ("fleets", "join-token", FLEET)):
        done = person.run(*refused)
        assert (done.returncode, "administrator" in done.stderr) == (2, True)
    done = person.run("submit", "--wait", _file(tmp_path, system.spec(["true"])))
    assert done.returncode == 0, done.stderr
