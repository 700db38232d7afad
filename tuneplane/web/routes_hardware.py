"""The hardware registry."""

from __future__ import annotations

from attrs import frozen

from tuneplane.control.api import SeriesAnswer, SeriesDraft
from tuneplane.domain.ids import SeriesId

from .inputs import PageQuery
from .routing import Answer, Call, Router, Who
from .site import Site

router = Router("hardware")


@frozen(kw_only=True)
class SeriesPage:
    """One page of hardware series, by name."""

    items: tuple[SeriesAnswer, ...]
    next_cursor: str | None


@frozen(kw_only=True)
class SeriesRemoval:
    """``?card_name=`` takes out that one card instead of the whole series."""

    card_name: str | None = None


@router.route("GET", "/api/hardware", who=Who.USER, query=PageQuery, answers={200: SeriesPage})
async def list_hardware(site: Site, call: Call) -> Answer:
    """The hardware series, and which cards are in each."""
    items, cursor = await site.api.hardware.list_page(call.query.page())
    return Answer(value=SeriesPage(items=tuple(items), next_cursor=cursor))


@router.route(
    "POST",
    "/api/hardware",
    who=Who.ADMIN,
    body=SeriesDraft,
    answers={200: SeriesAnswer, 201: SeriesAnswer},
    problems=(409,),
    acts=("hardware.add",),
)
async def add_hardware(site: Site, call: Call) -> Answer:
    """Make a hardware series (201), or add cards to one (200); jobs that wait for it are placed at once."""
    series, is_new = await site.api.hardware.add(call.user, call.body)
    return Answer(status=201 if is_new else 200, value=series)


@router.route(
    "DELETE", "/api/hardware/{series}", who=Who.ADMIN, query=SeriesRemoval, answers={204: None}, problems=(409,), acts=("hardware.remove",)
)
async def delete_hardware(site: Site, call: Call) -> Answer:
    """Remove a hardware series that no live job pins, or one card of it."""
    await site.api.hardware.remove(call.user, SeriesId(call.path["series"]), call.query.card_name)
    return Answer(status=204)
