"""The console: server-rendered pages over the same services as the API, kept live by ``GET /api/events``.

A page is whole and true without its script (it says as of when); the script refetches it when something changed and
exchanges the parts marked ``data-live``. Changes go through the HTTP API, so there is one door for them.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from attrs import evolve, frozen
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tuneplane.control.api import answer_fleet
from tuneplane.domain import codec
from tuneplane.domain.errors import NotFound
from tuneplane.domain.fleet_config import SETTINGS
from tuneplane.domain.fleets import Capability, Delivery, FleetKind
from tuneplane.domain.hardware import MOST_SERIES
from tuneplane.domain.ids import FleetId, JobId
from tuneplane.domain.jobs import Page
from tuneplane.domain.launch_table import FINAL_JOB_STATES, JobState

from .inputs import PageQuery
from .problems import Problem
from .routes_jobs import JobQuery
from .routing import Answer, Call, Router, Who
from .site import Site

HERE = Path(__file__).parent
HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
STATIC = {"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
MOST_NODES = 500  # that one look for unknown cards goes through: the newest, one page
MOST_TOKENS = 20  # Join Tokens shown of a Fleet: the newest
FLEET_CHOICES = {
    "kinds": list(FleetKind),
    "deliveries": list(Delivery),
    "capabilities": list(Capability),
    "settings": SETTINGS,
}
UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def show_problem(site: Site, problem: Problem, address: str) -> Answer:
    """A problem as a page; a stranger is sent to the sign-in and back."""
    if problem.status == 401:
        return Answer(status=303, raw=b"", media_type=HTML, headers={"Location": f"/signin?next={quote(address.removesuffix('?'))}"})
    answer = _render("problem.html", site, None, problem=problem)
    return evolve(answer, status=problem.status, headers={**answer.headers, **problem.headers})


router = Router("console", page=show_problem)


@frozen(kw_only=True)
class SignInQuery:
    """Where to go after signing in: a path of ours."""

    next: str = "/"


@router.route("GET", "/", who=Who.USER)
async def front_page(site: Site, call: Call) -> Answer:
    """Jobs, or Fleets while there are none."""
    fleets = await site.api.fleets.visible(call.user)
    return Answer(status=303, raw=b"", media_type=HTML, headers={"Location": "/jobs" if fleets else "/fleets"})


@router.route("GET", "/signin", who=Who.ALL, query=SignInQuery)
async def signin_page(site: Site, call: Call) -> Answer:
    """Sign in with a name and a password."""
    return _render("signin.html", site, call, next=_own_path(call.query.next))


@router.route("GET", "/fleets", who=Who.USER, query=PageQuery)
async def fleets_page(site: Site, call: Call) -> Answer:
    """Fleets; for administrators also creating one and minting a Join Token."""
    fleets, cursor = await site.api.fleets.list_page(call.user, call.query.page())
    return _render("fleets.html", site, call, fleets=fleets, cursor=cursor, **FLEET_CHOICES)


@router.route("GET", "/fleets/{fleet}", who=Who.USER, query=PageQuery)
async def fleet_page(site: Site, call: Call) -> Answer:
    """One Fleet and its Nodes, each with connection, scheduling and inventory apart; for administrators also changing it."""
    fleet = answer_fleet(await site.api.fleets.get(call.user, FleetId(call.path["fleet"])))
    nodes, cursor = await site.api.nodes.list_page(call.user, fleet.id, call.query.page())
    tokens = await site.api.fleets.list_join_tokens(call.user, fleet.id) if call.user.role == "admin" else []
    shown = {"nodes": nodes, "cursor": cursor, "tokens": tokens[:MOST_TOKENS]}
    return _render("fleet.html", site, call, fleet=fleet, **shown, **FLEET_CHOICES)


@router.route("GET", "/hardware", who=Who.USER)
async def hardware_page(site: Site, call: Call) -> Answer:
    """The hardware registry, and which cards of the Nodes that the caller may see are not in it (R-ENR-06)."""
    series, _ = await site.api.hardware.list_page(Page(limit=MOST_SERIES))
    nodes, more = await site.api.nodes.list_page(call.user, None, Page(limit=MOST_NODES))
    unknown = sorted(Counter(name for node in nodes for name in node.unknown_cards).items())
    return _render("hardware.html", site, call, series=series, unknown=unknown, more=more is not None, looked_at=MOST_NODES)


@router.route("GET", "/nodes", who=Who.USER, query=PageQuery)
async def nodes_page(site: Site, call: Call) -> Answer:
    """Nodes: connection, scheduling and inventory as three separate things (R-LIV-06)."""
    nodes, cursor = await site.api.nodes.list_page(call.user, None, call.query.page())
    return _render("nodes.html", site, call, nodes=nodes, cursor=cursor, warnings=await site.api.sights.warnings())


@router.route("GET", "/jobs", who=Who.USER, query=JobQuery)
async def jobs_page(site: Site, call: Call) -> Answer:
    """Jobs, newest first."""
    jobs, cursor = await site.api.jobs.list_page(call.user, call.query.page(), states=call.query.state)
    chosen = [state.value for state in call.query.state]
    return _render("jobs.html", site, call, jobs=jobs, cursor=cursor, states=list(JobState), chosen=chosen)


@router.route("GET", "/jobs/{job}", who=Who.USER)
async def job_page(site: Site, call: Call) -> Answer:
    """One job: where it stands, its members, its timeline and its log."""
    job = await site.api.jobs.get(call.user, JobId(call.path["job"]))
    events = await site.api.jobs.timeline(call.user, job.id)
    spec = json.dumps(codec.encode(job.spec), indent=2, ensure_ascii=False)
    return _render("job.html", site, call, job=job, events=events, spec=spec, ended=job.state in FINAL_JOB_STATES)


@router.route("GET", "/static/{name}", who=Who.ALL)
async def static_file(site: Site, call: Call) -> Answer:
    """Style, script and icon; their addresses carry a digest, so they may be kept."""
    name = call.path["name"]
    if name not in STATIC:
        raise NotFound("file", name)
    return Answer(raw=_static(name), media_type=STATIC[name], headers={"Cache-Control": "public, max-age=3600"})


def _own_path(text: str) -> str:
    """Only a path on this console: an open redirect helps phishing."""
    parts = urlsplit(text)
    own = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return text if own and text.isprintable() else "/"


def _render(template: str, site: Site, call: Call | None, **values: Any) -> Answer:
    user = call.caller if call is not None else None
    html = _environment().get_template(template).render(user=user, csrf=call.csrf if call else "", now=site.clock(), **values)
    return Answer(raw=html.encode(), media_type=HTML, headers={"Content-Security-Policy": POLICY})


@cache
def _static(name: str) -> bytes:
    return (HERE / "static" / name).read_bytes()


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(size=show_size, iso=show_iso, clock=show_clock)
    made.globals["static"] = _static_address
    return made


def _static_address(name: str) -> str:
    return f"/static/{name}?v={sha256(_static(name)).hexdigest()[:12]}"


def show_size(amount: int) -> str:
    """Bytes for people, in the units of the API (powers of ten)."""
    for unit, size in UNITS:
        if amount >= size:
            return f"{amount / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{amount} B"


def show_iso(moment: datetime) -> str:
    return str(codec.encode(moment))


def show_clock(moment: datetime) -> str:
    """UTC to the second, for readers without a script."""
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
