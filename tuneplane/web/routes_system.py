"""Liveness, readiness, metrics, version and the OpenAPI document."""

from __future__ import annotations

import trio
from attrs import frozen

from tuneplane.domain.errors import Reason, StorageUnavailable
from tuneplane.domain.frames import WIRE_PROTOCOL

from . import metrics, openapi
from .problems import MEDIA_TYPE, Problem
from .routing import Answer, Call, Raw, Router, Who
from .site import Site

router = Router("system")

READY_SECONDS = 2.0  # a database that takes longer to answer is not one to send people to


@frozen(kw_only=True)
class Alive:
    """The process runs and answers."""

    status: str


@frozen(kw_only=True)
class Ready:
    """The process can do its work: PostgreSQL answers and has the schema that this version knows."""

    ready: bool
    warnings: tuple[str, ...]  # what it suspects of itself meanwhile, such as the mass-failure brake


@frozen(kw_only=True)
class Version:
    """What runs here, and the wire protocol that Nodes must speak."""

    version: str
    wire_protocol: int


@router.route("GET", "/healthz", who=Who.ALL, answers={200: Alive})
async def healthz(site: Site, call: Call) -> Answer:
    """Whether the process is alive; says nothing about what it depends on."""
    return Answer(value=Alive(status="alive"))


@router.route("GET", "/readyz", who=Who.ALL, answers={200: Ready})
async def readyz(site: Site, call: Call) -> Answer:
    """Whether the process can do its work now; asked anew every time."""
    try:
        with trio.fail_after(READY_SECONDS):
            await site.storage.ping()
            warnings = await site.api.sights.warnings()
    except (StorageUnavailable, trio.TooSlowError) as error:
        site.metrics.ready.set(0)
        why = str(error) or f"PostgreSQL did not answer within {READY_SECONDS:g} s"
        problem = Problem(
            status=503, code="not-ready", detail="The database does not answer.", reasons=(Reason("database", why),), trace=call.trace
        )
        return Answer(status=503, raw=problem.body(), media_type=MEDIA_TYPE)
    site.metrics.ready.set(1)
    return Answer(value=Ready(ready=True, warnings=warnings))


@router.route("GET", "/metrics", who=Who.ALL, answers={200: Raw("text/plain", "Prometheus text format")})
async def read_metrics(site: Site, call: Call) -> Answer:
    """Counters and gauges of this process."""
    site.metrics.streams.set(site.streams.total)
    return Answer(raw=site.metrics.text(), media_type=metrics.MEDIA_TYPE)


@router.route("GET", "/api/version", who=Who.ALL, answers={200: Version})
async def read_version(site: Site, call: Call) -> Answer:
    """The version of this console and the wire protocol that it speaks."""
    return Answer(value=Version(version=site.version, wire_protocol=WIRE_PROTOCOL))


@router.route("GET", "/api/openapi.json", who=Who.ALL, answers={200: Raw("application/json", "this document")})
async def read_document(site: Site, call: Call) -> Answer:
    """The OpenAPI document of these routes."""
    from .routes import API_ROUTES  # the table holds this very route

    return Answer(raw=openapi.spell(openapi.document(API_ROUTES, site.version)))
