"""Logs: bounded reads by tail, by offset and followed; any bytes; very long lines; after the container has gone (R-LCH-13).

The bytes go from the Node to its gateway and from there to an API that shares only PostgreSQL with it (P-23).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.system import WholeSystem, open_system_of_processes

pytestmark = [pytest.mark.e2e]

LONG_LINE = 100_000_000


def _numbers(system: WholeSystem, last: int) -> str:
    job = system.sh(f"i=0; while [ $i -lt {last} ]; do i=$((i+1)); echo line $i; done")
    system.wait_job(job, "succeeded")
    return job


def test_log_is_read_whole_by_bounded_reads(system: WholeSystem) -> None:
    job = _numbers(system, 1000)
    expected = b"".join(b"line %d\n" % number for number in range(1, 1001))
    data, offset = b"", 0
    while True:
        piece, offset = system.client.read_log(job, offset=offset, max_bytes=1000)
        assert len(piece) <= 1000
        if not piece:
            break
        data += piece
    assert data == expected


def test_log_is_read_from_its_last_lines(system: WholeSystem) -> None:
    job = _numbers(system, 50)
    data, behind = system.client.read_log(job, tail_lines=2)
    assert data == b"line 49\nline 50\n"
    assert system.client.read_log(job, offset=behind)[0] == b""


def test_log_is_there_after_the_container_has_gone(system: WholeSystem) -> None:
    job = system.sh("echo kept")
    system.wait_job(job, "succeeded")
    system.wait_cleaned(job)
    assert system.containers(job) == []
    assert system.read_log(job) == b"kept\n"


def test_log_that_is_not_text_comes_back_byte_for_byte(system: WholeSystem) -> None:
    octal = "".join(f"\\{number:03o}" for number in range(256))
    job = system.sh(f"printf '{octal}'; printf '\\377\\376 half a line'")
    system.wait_job(job, "succeeded")
    assert system.read_log(job) == bytes(range(256)) + b"\xff\xfe half a line"


def test_log_keeps_both_streams(system: WholeSystem) -> None:
    job = system.sh("echo out; echo err >&2")
    system.wait_job(job, "succeeded")
    assert sorted(system.read_log(job).splitlines()) == [b"err", b"out"]


def test_log_is_followed_from_before_the_start_to_the_end(system: WholeSystem) -> None:
    job = system.sh("for i in 1 2 3; do echo $i; sleep 0.2; done")
    assert system.follow_log(job) == b"1\n2\n3\n"
    assert system.wait_job(job)["state"] == "succeeded"


def test_log_is_followed_from_an_offset(system: WholeSystem) -> None:
    job = _numbers(system, 10)
    assert system.follow_log(job, offset=len(b"line 1\n") * 9) == b"line 10\n"


def test_log_of_a_job_without_output_is_empty_and_ends(system: WholeSystem) -> None:
    job = system.sh("true")
    assert system.follow_log(job) == b""
    assert system.read_log(job) == b""


@pytest.mark.parametrize("query", ["offset=-1", "tail_lines=1&offset=1", "max_bytes=0", "surprise=1"])
def test_log_read_with_a_wrong_query_is_refused(system: WholeSystem, query: str) -> None:
    job = _numbers(system, 1)
    answer = system.client._http.get(f"/api/jobs/{job}/logs?{query}")
    assert answer.status_code == 422
    assert answer.json()["field"]


def test_line_of_a_hundred_megabytes_harms_nobody(system: WholeSystem) -> None:
    """One endless line is read in bounded pieces; other jobs and a stop go on beside it (R-SES-07)."""
    job = system.sh(f"head -c {LONG_LINE} /dev/zero | tr '\\0' x; echo; echo end", resources={"pools": [{"cpus": 1, "memory_gb": 0.1}]})
    other = system.sh("echo beside")
    assert system.follow_log(other) == b"beside\n"
    assert system.wait_job(job)["state"] == "succeeded"
    system.wait_cleaned(job)  # the rest of the log is copied before the container goes
    tail, behind = system.client.read_log(job, tail_lines=1)
    assert tail == b"end\n"
    piece, _ = system.client.read_log(job, offset=max(0, behind - 5000), max_bytes=4000)
    assert len(piece) == 4000
    assert set(piece) <= set(b"x\nend")


def test_logs_command_follows_as_a_person_would(system: WholeSystem, tmp_path: Path) -> None:
    """``tuneplane login`` by file, then ``tuneplane logs -f``: exit status 0 and the bytes on standard output."""
    job = system.sh("echo one; sleep 0.3; echo two")
    program = str(Path(sys.executable).with_name("tuneplane"))
    ca = system.directory / "data" / "console-ca.pem"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    token = system.client._http.headers["Authorization"].removeprefix("Bearer ")
    login = [program, "login", system.console_url, "--ca", str(ca), "--token-file", "-"]
    done = subprocess.run(login, env=env, input=token.encode(), capture_output=True, timeout=60, check=True)
    assert token.encode() not in done.stdout + done.stderr
    followed = subprocess.run([program, "logs", "-f", job], env=env, capture_output=True, timeout=60, check=False)
    assert (followed.returncode, followed.stdout) == (0, b"one\ntwo\n"), followed.stderr


def test_log_outlives_its_node(tmp_path: Path) -> None:
    """R-LCH-13, L-E7: read, by its last lines and followed, after the Node was ended and removed for good."""
    with open_system_of_processes() as system:
        job = _numbers(system, 1000)
        system.wait_cleaned(job)
        system.kill("node")
        system.client.delete(f"/api/nodes/{system.node_id}?force=true")
        expected = b"".join(b"line %d\n" % number for number in range(1, 1001))
        assert system.client.read_log(job)[0] == expected
        assert system.client.read_log(job, tail_lines=1)[0] == b"line 1000\n"
        assert system.follow_log(job, offset=7) == expected[7:]
