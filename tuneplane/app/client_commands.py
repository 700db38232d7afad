"""``tuneplane login | nodes | submit | jobs | logs | stop | retry | declare-lost``: thin over the HTTP API.

Tables for people, ``--json`` for programs (one document on standard output; messages go to standard error).
Exit status: 0 done, 1 failed, 2 wrong usage or refused. A refusal prints its sentence and every reason.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from rich.console import Console

from tuneplane.domain.errors import TuneplaneError

from . import tables
from .client import (
    ApiClient,
    ApiRefused,
    ClientError,
    Credentials,
    check_url,
    credentials_path,
    path_of,
    read_credentials,
    write_credentials,
)


class LogUnavailable(TuneplaneError):
    """The log cannot be read now, and nobody asked to wait for it."""


F = TypeVar("F", bound=Callable[..., Any])

FINAL = frozenset({"succeeded", "failed", "stopped"})
LOOK_SECONDS = 0.5  # between looks at a job that somebody waits for
RETRY_SECONDS = 1.0  # between tries to take a broken log stream up again
MOST_RETRIES = 30  # half a minute of an unreachable console, then we say so
MAX_SPEC_BYTES = 1 << 20  # the API refuses more


def failing_politely(command: F) -> F:
    """Turn our errors into a sentence and the promised exit status."""

    @functools.wraps(command)
    def guarded(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except ApiRefused as error:
            click.echo(f"refused: {error}" + (f" ({error.field})" if error.field and error.field not in str(error) else ""), err=True)
            for reason in error.reasons:
                click.echo(f"  - {reason.detail}", err=True)
            sys.exit(2)
        except TuneplaneError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has what it wanted
            sys.exit(0)
        except OSError as error:  # a full disk behind a redirection
            click.echo(f"error: {error}", err=True)
            sys.stdout = None  # or its last flush fails again, at exit
            sys.exit(1)

    return guarded  # type: ignore[return-value]


def open_client() -> ApiClient:
    return ApiClient(read_credentials(os.environ))


def show(as_json: bool, data: Any, render: Callable[[Console], None]) -> None:
    """``data`` as JSON, or what ``render`` prints."""
    if as_json:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        render(tables.open_console())


def ask_secret(prompt: str) -> str:
    """From the terminal without echo, or the first line of standard input when that is no terminal."""
    if sys.stdin.isatty():
        return str(click.prompt(prompt, hide_input=True, err=True))
    return sys.stdin.readline().rstrip("\n")


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")


@click.command()
@click.argument("url")
@click.option("--ca", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="PEM file of the console's private CA.")
@click.option("--username", help="Log in with a password and make an API token, instead of giving a token.")
@click.option("--token-file", type=click.File(), help="Read the API token from this file ('-': standard input).")
@json_option
@failing_politely
def login(url: str, ca: Path | None, username: str | None, token_file: Any, as_json: bool) -> None:
    """Remember how to reach the console at URL, after trying it. The token is asked for, never an argument."""
    ca_pem = ca.read_text() if ca else ""
    if username:
        token = _token_by_password(url, ca_pem, username)
    elif token_file:
        token = token_file.read().strip()
    else:
        token = os.environ.get("TUNEPLANE_TOKEN") or ask_secret("API token")
    credentials = Credentials(url=check_url(url), token=token, ca_pem=ca_pem)
    with ApiClient(credentials) as client:
        who = client.get("/api/whoami")
    path = credentials_path(os.environ)
    write_credentials(credentials, path)
    show(as_json, who, lambda out: out.print(f"logged in to {url} as {who['username']} ({who['role']})", highlight=False))


def _token_by_password(url: str, ca_pem: str, username: str) -> str:
    """Log in once with the password and mint an API token for this machine's command line."""
    password = ask_secret("Password")
    with ApiClient(Credentials(url=check_url(url), token="", ca_pem=ca_pem)) as client:
        client.log_in(username, password)
        return str(client.post("/api/tokens", {"name": f"cli on {os.uname().nodename}"})["token"])


@click.command()
@click.option("--fleet", help="Only the Nodes of this Fleet.")
@click.option("--cards", is_flag=True, help="Also each card: who has it, and what keeps new work off it.")
@json_option
@failing_politely
def nodes(fleet: str | None, cards: bool, as_json: bool) -> None:
    """List Nodes: control connection, scheduling state, capacity, and why one is not ready."""
    with open_client() as client:
        names = [fleet] if fleet else [item["id"] for item in client.list_all("/api/fleets") if item["kind"] == "node"]
        items = [node for name in names for node in client.list_all(path_of("fleets", name, "nodes"))]
    show(as_json, items, lambda out: out.print(tables.nodes_table(items), *([tables.cards_table(items)] if cards else [])))


@click.command()
@click.argument("spec", type=click.File("rb"))
@click.option("--wait", is_flag=True, help="Stay until the job has ended; exit status 1 unless it succeeded.")
@json_option
@failing_politely
def submit(spec: Any, wait: bool, as_json: bool) -> None:
    """Submit the JobSpec in the YAML or JSON file SPEC ('-': standard input)."""
    body = _read_spec(spec.read(MAX_SPEC_BYTES + 1))
    with open_client() as client:
        job = client.post("/api/jobs", body, idempotency_key=str(uuid.uuid4()))
        if not as_json:
            click.echo(f"{job['id']} was admitted to Fleet {job['fleet']}", err=wait)
        if wait:
            job = wait_for_job(client, job["id"], lambda text: click.echo(text, err=True))
    if as_json or wait:
        show(as_json, job, lambda out: tables.job_details(job, out))
    if wait and job["state"] != "succeeded":
        sys.exit(1)


def _read_spec(data: bytes) -> Any:
    if len(data) > MAX_SPEC_BYTES:
        raise click.UsageError(f"the spec is larger than {MAX_SPEC_BYTES} bytes")
    try:
        spec = yaml.safe_load(data)
        json.dumps(spec, allow_nan=False)
    except (yaml.YAMLError, RecursionError) as error:
        raise click.UsageError(f"the spec is neither YAML nor JSON: {error}") from error
    except (TypeError, ValueError) as error:  # a date of YAML, say
        raise click.UsageError(f"the spec holds what JSON has no word for, put it in quotes: {error}") from error
    return spec


def wait_for_job(client: ApiClient, job_id: str, say: Callable[[str], None], until: frozenset[str] = FINAL) -> Any:
    """Look at the job until its state is in ``until`` (or final), saying each change; returns the job as last seen."""
    said = ""
    while True:
        job = client.get(path_of("jobs", job_id))
        now = f"{job['state']}" + (f": {text}" if (text := tables.why(job)) else "")
        if now != said:
            say(now)
            said = now
        if job["state"] in until or job["state"] in FINAL:
            return job
        time.sleep(LOOK_SECONDS)


@click.command()
@click.argument("job", required=False)
@click.option("--fleet", help="Only the jobs of this Fleet.")
@click.option("--all", "everything", is_flag=True, help="Page through all jobs instead of the newest 50.")
@json_option
@failing_politely
def jobs(job: str | None, fleet: str | None, everything: bool, as_json: bool) -> None:
    """List jobs, or show JOB with its members, progress and waiting reasons."""
    with open_client() as client:
        if job:
            details = client.get(path_of("jobs", job))
            show(as_json, details, lambda out: tables.job_details(details, out))
            return
        items = client.list_all("/api/jobs", fleet=fleet) if everything else client.get("/api/jobs", fleet=fleet)["items"]
    show(as_json, items, lambda out: out.print(tables.jobs_table(items)))


@click.command()
@click.option("--fleet", help="Only what waits in this Fleet's queue.")
@json_option
@failing_politely
def waiting(fleet: str | None, as_json: bool) -> None:
    """Say what waits and why, grouped by cause, the most jobs first."""
    with open_client() as client:
        groups = client.get("/api/waiting", fleet=fleet)["items"]
    show(as_json, groups, lambda out: out.print(tables.waiting_table(groups)))


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Stay, and print what the job writes until it ends.")
@click.option("--tail", "tail_lines", type=click.IntRange(min=0), help="Start at the last N lines.")
@click.option("--offset", type=click.IntRange(min=0), help="Start at this byte.")
@click.option("--member", help="The member's id or rank; the first one by default.")
@click.option("--attempt", type=click.IntRange(min=1), help="The attempt's number; the latest by default.")
@json_option
@failing_politely
def logs(job: str, follow: bool, as_json: bool, **where: Any) -> None:
    """Print what JOB wrote, byte for byte. With --json: one document a line, the bytes in base64."""
    if where["offset"] is None and where["tail_lines"] is None:
        where["offset"] = 0

    def write(piece: dict[str, Any]) -> None:
        _write_piece(piece, as_json)

    with open_client() as client:
        if follow:
            follow_log(client, job, write, lambda text: click.echo(f"[{text}]", err=True), **where)
        elif client.get(path_of("jobs", job))["state"] in FINAL:
            follow_log(client, job, write, _give_up, **where)  # ends with the last byte, also while the Node still copies it
        else:
            read_whole_log(client, job, write, **where)


def read_whole_log(client: ApiClient, job: str, write: Callable[[dict[str, Any]], None], **where: Any) -> None:
    """Bounded reads until the present end of the log."""
    while True:
        data, behind = client.read_log(job, **where)
        if data:
            write({"offset": behind - len(data), "data": base64.b64encode(data).decode()})
        if not data:
            return
        where |= {"offset": behind, "tail_lines": None}


def follow_log(
    client: ApiClient,
    job: str,
    write: Callable[[dict[str, Any]], None],
    note: Callable[[str], None] = lambda text: None,
    **where: Any,
) -> None:
    """Write pieces as they come until the job's log ends; takes a broken stream up again where it stood.

    ``note`` hears why nothing comes: what the job waits for, or who is away.
    """
    failures = 0
    while True:
        try:
            with client.open_events(path_of("jobs", job, "logs"), follow=True, **where) as events:
                for name, event in events:
                    if name == "end":
                        return
                    if name == "error":
                        raise ClientError(f"the log of {job} cannot be read now: {event.get('detail')}")
                    if name == "log":
                        failures = 0
                        write(event)
                        where |= {"offset": event["next_offset"], "tail_lines": None, "attempt": event.get("attempt")}
                    if name in ("waiting", "interrupted"):
                        note(str(event["detail"]))
            raise ClientError(f"the log stream of {job} ended without an end mark")
        except ClientError:
            failures += 1
            if failures > MOST_RETRIES:
                raise
            time.sleep(RETRY_SECONDS)


def _give_up(reason: str) -> None:
    raise LogUnavailable(reason)


def _write_piece(piece: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(piece))
        return
    if piece.get("gap"):
        click.echo(f"\n[{piece['gap']} bytes are missing here]", err=True)
    sys.stdout.buffer.write(base64.b64decode(piece["data"]))
    sys.stdout.buffer.flush()


@click.command()
@click.argument("job")
@click.option("--wait", is_flag=True, help="Stay until the stop is confirmed.")
@json_option
@failing_politely
def stop(job: str, wait: bool, as_json: bool) -> None:
    """Stop JOB: its signal, its grace, then a kill. Repeating it is harmless."""
    with open_client() as client:
        stopped = client.post(path_of("jobs", job, "stop"))
        if wait:
            stopped = wait_for_job(client, job, lambda text: click.echo(text, err=True))
    show(as_json, stopped, lambda out: tables.job_details(stopped, out))


@click.command()
@click.argument("job")
@click.option("--wait", is_flag=True, help="Stay until the job has ended; exit status 1 unless it succeeded.")
@json_option
@failing_politely
def retry(job: str, wait: bool, as_json: bool) -> None:
    """Try JOB, which has failed, once more. Whether it was stopped decides more than why it failed: a stopped job never starts again."""
    with open_client() as client:
        seen = client.get(path_of("jobs", job))["attempt_number"]
        queued = client.post(path_of("jobs", job, "retry") + f"?after={seen}")
        if wait:
            queued = wait_for_job(client, job, lambda text: click.echo(text, err=True))
    show(as_json, queued, lambda out: tables.job_details(queued, out))
    if wait and queued["state"] != "succeeded":
        sys.exit(1)


@click.command("declare-lost")
@click.argument("node")
@click.argument("member")
@click.option("--reason", required=True, help="How you know that it runs no more; kept in the audit log.")
@failing_politely
def declare_lost(node: str, member: str, reason: str) -> None:
    """End MEMBER of the silent NODE by your word, and release what it holds (administrators).

    Only when you know that the machine is gone or the work on it has ended: nothing else proves that it does not still run.
    """
    with open_client() as client:
        client.post(path_of("nodes", node, "members", member, "declare-lost"), {"reason": reason})
    click.echo(f"{member} is declared lost; what it held on {node} is free", err=True)


@click.command("accept-epoch")
@click.argument("node")
@click.option("--hold", required=True, help="The id of the hold, as the Node's problems show it.")
@json_option
@failing_politely
def accept_epoch(node: str, hold: str, as_json: bool) -> None:
    """Let NODE obey again: it holds all commands since this control plane's database was restored from a backup.

    Look first at what runs there: work that the restored database does not know goes on, and is shown as strangers.
    """
    with open_client() as client:
        accepted = client.post(path_of("nodes", node, "accept-epoch"), {"hold": hold})
    show(as_json, accepted, lambda out: click.echo(f"accepted: {node} obeys again from its next session on"))


@click.command("stop-stranger")
@click.argument("node")
@click.argument("container")
@click.option("--member", required=True, help="Its member label, as the Node's inventory shows it.")
@json_option
@failing_politely
def stop_stranger(node: str, container: str, member: str, as_json: bool) -> None:
    """Stop CONTAINER on NODE, which Tuneplane started and nobody knows any more; its full id is in the Node's inventory."""
    with open_client() as client:
        asked = client.post(path_of("nodes", node, "stop-stranger"), {"container": container, "member": member})
    show(as_json, asked, lambda out: click.echo(f"{node} is told to stop it; it leaves the Node's strangers when it has ended"))


COMMANDS: tuple[click.Command, ...] = (
    *(login, nodes, accept_epoch, stop_stranger),
    *(submit, jobs, waiting, logs, stop, retry, declare_lost),
)
