"""The hardware registry of the twin (HardwareStore)."""

from __future__ import annotations

from datetime import UTC, datetime

from attrs import evolve

from tuneplane.domain.errors import NotFound
from tuneplane.domain.hardware import Registry, Series, card_key
from tuneplane.domain.ids import SeriesId, UserName
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.ports import Topic
from tuneplane.storage.hardware import check_removal, check_room, refuse_pinned, refuse_taken

from .base import Client, audit, poke
from .rows import Book

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)  # the twin keeps no time of a series' making


class Hardware(Client):
    async def hardware(self) -> Registry:
        return await self.read("hardware", registry_of)

    async def add_series(self, series: Series, now: datetime, *, by: UserName | None = None) -> tuple[Series, bool]:
        return await self.write("add_series", _add, series, now, by)

    async def remove_series(
        self, series: SeriesId, card_name: str | None = None, *, by: UserName | None = None, now: datetime | None = None
    ) -> None:
        await self.write("remove_series", _remove, series, card_name, by, now)


def registry_of(book: Book) -> Registry:
    return Registry(tuple(sorted(book.series, key=lambda one: one.series)))


def series_is_known(book: Book, spec: JobSpec) -> bool:
    return spec.pool.series is None or spec.pool.series in book.series


def _add(book: Book, series: Series, now: datetime, by: UserName | None) -> tuple[Series, bool]:
    former = book.series.get(series.series)
    wanted = {card_key(name): name for name in series.card_names}
    others = {card_key(name): one.series for one in book.series for name in one.card_names if one.series != series.series}
    refuse_taken({key: others[key] for key in sorted(wanted) if key in others}, wanted)
    known = {card_key(name): name for name in former.card_names} if former is not None else {}
    made = book.series.put(
        series.series, Series(series=series.series, card_names=tuple({**wanted, **known}[key] for key in {**known, **wanted}))
    )
    check_room(registry_of(book), made)
    audit(book, by, "hardware.add", made.series, now, ", ".join(series.card_names))
    poke(book, Topic.JOBS, Topic.CONSOLE)
    return made, former is None


def _remove(book: Book, series: SeriesId, card_name: str | None, by: UserName | None, now: datetime | None) -> None:
    found = book.series.get(series)
    if found is None:
        raise NotFound("hardware series", series)
    if card_name is None:
        refuse_pinned(series, sorted(job.id for job in book.jobs if job.ended_at is None and job.spec.pool.series == series))
        book.series.drop(series)
    else:
        check_removal(series, {card_key(name) for name in found.card_names}, card_name)
        left = tuple(name for name in found.card_names if card_key(name) != card_key(card_name))
        book.series.put(series, evolve(found, card_names=left))
    audit(book, by, "hardware.remove", series, now or LONG_AGO, card_name or "")
    poke(book, Topic.JOBS, Topic.CONSOLE)
