"""The hardware registry (R-ENR-06)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.errors import NotFound, Reason, Refused
from tuneplane.domain.hardware import MOST_CARD_NAMES, MOST_SERIES, Registry, Series, card_key
from tuneplane.domain.ids import SeriesId, UserName
from tuneplane.domain.ports import Topic

from .database import Aggregate, audit, clean, poke
from .fleets import NAMED_IN_REFUSAL

Fetch = Callable[[str], Awaitable[list[Row]]]
ALL = "SELECT series, name FROM hardware_series LEFT JOIN hardware_card USING (series) ORDER BY series, place"


class Hardware(Aggregate):
    """HardwareStore (domain/ports.py)."""

    async def hardware(self) -> Registry:
        return await read_registry(self._db.fetch)

    async def add_series(self, series: Series, now: datetime, *, by: UserName | None = None) -> tuple[Series, bool]:
        return await self._db.write("add_series", _add, series, now, by)

    async def remove_series(
        self, series: SeriesId, card_name: str | None = None, *, by: UserName | None = None, now: datetime | None = None
    ) -> None:
        await self._db.write("remove_series", _remove, series, card_name, by, now)


async def read_registry(fetch: Fetch) -> Registry:
    """All of it, by ``fetch`` of a pool or of a unit's connection."""
    names: dict[SeriesId, list[str]] = {}
    for row in await fetch(ALL):
        names.setdefault(row["series"], []).extend([] if row["name"] is None else [row["name"]])
    return Registry(tuple(Series(series=series, card_names=tuple(cards)) for series, cards in names.items()))


async def _add(connection: Connection, series: Series, now: datetime, by: UserName | None) -> tuple[Series, bool]:
    await _one_at_a_time(connection)
    sql = "INSERT INTO hardware_series (series, created_at) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING series"
    is_new = await connection.fetchrow(sql, series.series, now) is not None
    wanted = {card_key(name): clean(name) for name in series.card_names}
    await _check_free(connection, series.series, wanted)
    sql = "INSERT INTO hardware_card (card_key, series, name) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    await connection.executemany(sql, [(clean(key), series.series, name) for key, name in wanted.items()])
    registry = await read_registry(connection.fetch)
    (made,) = [one for one in registry.series if one.series == series.series]
    check_room(registry, made)
    await audit(connection, by, "hardware.add", made.series, now, ", ".join(series.card_names))
    await poke(connection, Topic.JOBS, Topic.CONSOLE)
    return made, is_new


async def _one_at_a_time(connection: Connection) -> None:
    """Administrators change the registry seldom; submissions that pin a series go on beside them."""
    await connection.execute("LOCK TABLE hardware_series IN SHARE ROW EXCLUSIVE MODE")


async def _check_free(connection: Connection, series: SeriesId, wanted: dict[str, str]) -> None:
    sql = "SELECT series, card_key FROM hardware_card WHERE card_key = ANY($1) AND series <> $2 ORDER BY card_key"
    rows = await connection.fetch(sql, [clean(key) for key in wanted], series)
    refuse_taken({row["card_key"]: row["series"] for row in rows}, wanted)


def refuse_taken(taken: dict[str, SeriesId], wanted: dict[str, str]) -> None:
    """Refused(code="card-taken") with a reason per name that another series has."""
    if taken:
        reasons = tuple(Reason("card-taken", f"{wanted[key]!r} belongs to series {series}", series) for key, series in taken.items())
        detail = f"a card belongs to one series, and {reasons[0].detail}: take it out there first"
        raise Refused("card-taken", detail, field="card_names", reasons=reasons)


def check_room(registry: Registry, made: Series) -> None:
    """Refused when the registry with ``made`` in it has too much of something."""
    if len(made.card_names) > MOST_CARD_NAMES:
        raise Refused("too-many-card-names", f"series {made.series} would have more than {MOST_CARD_NAMES} card names", field="card_names")
    if len(registry.series) > MOST_SERIES:
        raise Refused("too-many-series", f"the hardware registry holds at most {MOST_SERIES} series", field="series")


async def _remove(connection: Connection, series: SeriesId, card_name: str | None, by: UserName | None, now: datetime | None) -> None:
    await _one_at_a_time(connection)
    row = await connection.fetchrow("SELECT created_at FROM hardware_series WHERE series = $1 FOR UPDATE", series)
    if row is None:
        raise NotFound("hardware series", series)
    if card_name is None:
        sql = "SELECT id FROM job WHERE live_series = $1 ORDER BY id"
        refuse_pinned(series, [row["id"] for row in await connection.fetch(sql, series)])
        await connection.execute("DELETE FROM hardware_series WHERE series = $1", series)
    else:
        await _remove_card(connection, series, card_name)
    await audit(connection, by, "hardware.remove", series, now or row["created_at"], card_name or "")
    await poke(connection, Topic.JOBS, Topic.CONSOLE)


def refuse_pinned(series: SeriesId, jobs: list[str]) -> None:
    """Refused(code="series-in-use") while jobs that have not ended pin the series."""
    if jobs:
        reasons = tuple(Reason("job", f"job {name} pins it and has not ended", name) for name in jobs[:NAMED_IN_REFUSAL])
        raise Refused("series-in-use", f"series {series} is pinned by {len(jobs)} jobs that have not ended", reasons=reasons)


async def _remove_card(connection: Connection, series: SeriesId, card_name: str) -> None:
    rows = await connection.fetch("SELECT card_key FROM hardware_card WHERE series = $1", series)
    keys = {row["card_key"] for row in rows}
    check_removal(series, keys, card_name)
    await connection.execute("DELETE FROM hardware_card WHERE card_key = $1", card_key(card_name))


def check_removal(series: SeriesId, keys: set[str], card_name: str) -> None:
    """NotFound, or Refused(code="last-card-name"): a series without cards would promise what no Fleet can hold."""
    if card_key(card_name) not in keys:
        raise NotFound(f"card of series {series}", card_name)
    if len(keys) == 1:
        raise Refused("last-card-name", f"{card_name!r} is the only card of series {series}: delete the series instead")
