"""What the client commands show a person: tables, waiting reasons and progress, from the API's JSON."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

COLOURS = {"succeeded": "green", "running": "green", "failed": "red", "stopped": "yellow", "stopping": "yellow", "queued": "cyan"}
Row = dict[str, Any]
PIPE_WIDTH = 10_000  # columns: beyond any row of ours, whose longest text is a Node's reasons


def fleets_table(fleets: list[Row]) -> Table:
    table = _table("FLEET", "KIND", "STATE", "CAPABILITIES", "DELIVERY", "VISIBLE TO", "OVERRIDES")
    for fleet in fleets:
        capabilities = ", ".join(fleet["capabilities"])
        seen_by = f"project {fleet['project']}" if fleet.get("project") else "everybody"
        table.add_row(fleet["id"], fleet["kind"], fleet["state"], capabilities, fleet["delivery"], seen_by, _overrides(fleet))
    return table


def _overrides(fleet: Row) -> Text:
    """Which settings it overrides; yellow where one of them has no effect (R-FLT-03)."""
    warned = len(fleet.get("warnings") or [])
    text = ", ".join(fleet.get("config") or {}) + (f" ({warned} without effect)" if warned else "")
    return Text(text, "yellow" if warned else "")


def fleet_details(fleet: Row, console: Console) -> None:
    """One Fleet with the settings it overrides."""
    console.print(fleets_table([fleet]))
    for key, value in (fleet.get("config") or {}).items():
        console.print(f"  {key} = {value}", highlight=False)


def hardware_table(series: list[Row]) -> Table:
    table = _table("SERIES", "CARDS")
    for one in series:
        table.add_row(one["series"], ", ".join(one["card_names"]))
    return table


def users_table(users: list[Row]) -> Table:
    table = _table("USER", "ROLE", "STATE", "PROJECTS", "SINCE")
    for user in users:
        state = Text("disabled", "red") if user["disabled"] else "active"
        table.add_row(user["username"], user["role"], state, ", ".join(user["projects"]), age(user["created_at"]))
    return table


def projects_table(projects: list[Row]) -> Table:
    table = _table("PROJECT", "MEMBERS", "SINCE")
    for project in projects:
        table.add_row(project["id"], ", ".join(project["members"]), age(project["created_at"]))
    return table


def audit_table(lines: list[Row]) -> Table:
    table = _table("AT", "WHO", "ACTION", "OBJECT", "DETAIL")
    for line in lines:
        action = Text(f"{line['action']} (forced)", "red") if line["forced"] else line["action"]
        table.add_row(line["at"], line["actor"], action, line["subject"], line["detail"])
    return table


def nodes_table(nodes: list[Row]) -> Table:
    """The three separate things of R-LIV-06, then what they come to."""
    table = _table("NODE", "FLEET", "ADDRESS", "CONNECTION", "SCHEDULING", "CPUS", "MEMORY", "GPUS", "READY")
    for node in nodes:
        capacity = node.get("capacity") or {}
        table.add_row(
            node["id"],
            node["fleet"],
            _reached(node),
            _connection(node),
            _scheduling(node),
            _share(capacity, "cpu_millis", 1000.0, ""),
            _share(capacity, "memory_bytes", 1e9, " GB"),
            _gpus(node),
            _ready(node),
        )
    return table


def cards_table(nodes: list[Row]) -> Table:
    """The cards of the Nodes' budgets: who has each, and who keeps it aside and why (L-D13)."""
    table = _table("NODE", "INDEX", "CARD", "NAME", "SERIES", "MEMBER", "ASIDE")
    for node in nodes:
        for card in node.get("cards") or []:
            aside = [f"{one['owner']}: {one['reason']}" for one in card["cordons"]]
            aside += ["" if card["granted"] else "not granted", "held by a stranger" if card["occupied"] else ""]
            why = Text("; ".join(filter(None, aside)), "yellow")
            index = "–" if card["index"] is None else str(card["index"])
            table.add_row(node["id"], index, card["uuid"], card["name"] or "–", card["series"] or "–", card["member"] or "–", why)
    return table


def _gpus(node: Row) -> str:
    aside = sum(bool(card["granted"] and card["cordons"]) for card in node.get("cards") or [])
    return _share(node.get("capacity") or {}, "gpus", 1.0, "") + (f", {aside} aside" if aside else "")


def _connection(node: Row) -> str:
    """Silence is told with what it comes to (R-LIV-01, R-LIV-02)."""
    state = str(node["connection"]["state"])
    return f"{state} (gone)" if (node.get("liveness") or {}).get("presence") == "gone" else state


def _scheduling(node: Row) -> str:
    """A drain is told with what it waits for (L-F1)."""
    scheduling = node["scheduling"]
    if scheduling.get("drained"):
        return "drained"
    left = scheduling.get("left") or []
    if scheduling["state"] != "draining" or not left:
        return str(scheduling["state"])
    return f"draining, {len(left)} left: " + ", ".join(f"{one['member']} {one['phase']}" for one in left)


def _ready(node: Row) -> Text:
    """Whether it takes work and why not, and what an operator should look at either way (P-07, R-LCH-05)."""
    ready = node["ready"]
    strange = (node.get("inventory") or {}).get("strangers") or []
    notes = [f"stranger {one['name']} ({one['container'] or 'no container'}, member {one['member'] or '?'})" for one in strange]
    notes += node.get("violations") or []
    notes += node.get("warnings") or []
    notes += [f"card {name!r} is not in the hardware registry" for name in node.get("unknown_cards") or []]
    text = "yes" if ready["value"] else "no: " + "; ".join(ready["reasons"])
    return Text("; ".join([text, *notes]), "green" if ready["value"] and not notes else "yellow")


def _reached(node: Row) -> str:
    """The address that was enrolled, and the numeric one that gangs use where it is another."""
    numeric = (node.get("inventory") or {}).get("route_address") or ""
    return f"{node['address']} ({numeric})" if numeric not in ("", node["address"]) else str(node["address"])


def jobs_table(jobs: list[Row]) -> Table:
    table = _table("JOB", "NAME", "FLEET", "OWNER", "STATE", "SINCE", "WHY")
    for job in jobs:
        state = Text(job["state"], COLOURS.get(job["state"], ""))
        table.add_row(job["id"], job["name"], job["fleet"], job["owner"], state, age(job["created_at"]), why(job))
    return table


def waiting_table(groups: list[Row]) -> Table:
    table = _table("JOBS", "FLEET", "CAUSE", "SINCE", "OLDEST", "WHY")
    for group in groups:
        cells = (str(group["jobs"]), group["fleet"], group["cause"], age(group["since"]), group["oldest"])
        table.add_row(*cells, group["detail"])
    return table


def job_details(job: Row, console: Console) -> None:
    """One job with its attempts and members."""
    console.print(jobs_table([job]))
    for reason in (job.get("waiting") or {}).get("reasons", []):
        console.print(f"  waiting: {reason['detail']}", highlight=False)
    for reason in (reason for attempt in job.get("attempts", []) for reason in attempt.get("waits_for", [])):
        console.print(f"  held: {reason['detail']}", highlight=False)
    for attempt in (attempt for attempt in job.get("attempts", []) if len(attempt["members"]) > 1 and attempt.get("main_port")):
        console.print(f"  attempt {attempt['number']} meets at {attempt['main_address']} port {attempt['main_port']}", highlight=False)
    for attempt in (attempt for attempt in job.get("attempts", []) if len(job["attempts"]) > 1 and attempt.get("reason_detail")):
        console.print(f"  attempt {attempt['number']} ended: {attempt['reason_detail']}", highlight=False)
    table = _table("MEMBER", "NODE", "PHASE", "EXIT", "PROGRESS", "WHY")
    for attempt in job.get("attempts", []):
        for member in attempt["members"]:
            code = member.get("exit_code")
            table.add_row(
                member["id"],
                member["node"],
                member["phase"],
                "" if code is None else str(code),
                progress_text(member.get("progress")),
                member.get("reason_detail") or member.get("reason_code") or "",
            )
    if table.row_count:
        console.print(table)


def why(job: Row) -> str:
    """The one thing a person wants to know about a job that is not simply running."""
    waiting = job.get("waiting")
    if waiting and job["state"] == "queued":
        reasons = [reason["detail"] for reason in waiting.get("reasons", [])]
        return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "") if reasons else str(waiting.get("code", ""))
    for reason in (reason for attempt in job.get("attempts") or [] for reason in attempt.get("waits_for", [])):
        return str(reason["detail"])
    going_on = [member["progress"] for member in current_members(job) if member.get("progress")]
    for progress in sorted(going_on, key=lambda one: one["phase"] == "wait-for-peers"):  # what keeps the others waiting first
        return progress_text(progress)
    return str(job.get("reason_detail") or job.get("reason_code") or "")


def current_members(job: Row) -> list[Row]:
    """The members of the latest attempt."""
    attempts = job.get("attempts") or []
    return list(max(attempts, key=lambda attempt: attempt["number"])["members"]) if attempts else []


def progress_text(progress: Row | None) -> str:
    if not progress:
        return ""
    done, total, unit = progress.get("done", 0), progress.get("total", 0), progress.get("unit", "")
    if unit == "bytes":
        amount = f"{done / 1e6:.1f}" + (f"/{total / 1e6:.1f}" if total else "") + " MB" if done or total else ""
    else:
        amount = f"{done}" + (f"/{total}" if total else "") + f" {unit}" if done or total else ""
    return f"{progress['phase']} {amount}".strip()


def age(moment: str) -> str:
    """How long ago an RFC 3339 time was, in the largest fitting unit."""
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _share(capacity: Row, name: str, unit: float, label: str) -> str:
    total = capacity.get(name)
    if total is None:
        return "–"
    return f"{capacity.get(name + '_used', 0) / unit:g}/{total / unit:g}{label}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)  # an id is there to be copied: others fold first
    return table


def open_console() -> Console:
    """Standard output, to which machines' own words go as they are: "[/dev/x]" is no markup, ":x:" no emoji.

    A pipe has no width: a row stays on its line there, for grep and awk.
    """
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, emoji=False)
