"""The hardware registry (R-ENR-06): read by all, changed by administrators."""

from __future__ import annotations

from attrs import frozen

from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.hardware import Series, check_series
from tuneplane.domain.ids import SLUG, SeriesId
from tuneplane.domain.jobs import Page, User

from .api_base import Base, require_admin


@frozen(kw_only=True)
class SeriesDraft:
    """Body of ``POST /api/hardware``: a new series, or more cards of one. Names as the driver reports them."""

    series: str
    card_names: tuple[str, ...]


@frozen(kw_only=True)
class SeriesAnswer:
    """A hardware series and the cards in it."""

    series: SeriesId
    card_names: tuple[str, ...]


@frozen(kw_only=True)
class Hardware(Base):
    """Which cards are of which series."""

    async def list_page(self, page: Page) -> tuple[list[SeriesAnswer], str | None]:
        """By name; the cursor is the last one of the page before."""
        if page.cursor is not None and not SLUG.match(page.cursor):
            raise InvalidInput("cursor", "is not a cursor of this list")
        after = page.cursor or ""
        found = [_answer(one) for one in (await self.storage.hardware()).series if one.series > after]
        shown = found[: page.limit]
        return shown, shown[-1].series if len(found) > len(shown) else None

    async def add(self, caller: User, draft: SeriesDraft) -> tuple[SeriesAnswer, bool]:
        """The series with its names and those of the draft, and whether it is new. InvalidInput names the field; Refused says
        which series has a card already."""
        require_admin(caller)
        wanted = check_series(Series(series=SeriesId(draft.series), card_names=draft.card_names))
        made, is_new = await self.storage.add_series(wanted, self.clock(), by=caller.username)
        self.tell(caller.username, "hardware.add", made.series, ", ".join(wanted.card_names))
        return _answer(made), is_new

    async def remove(self, caller: User, series: SeriesId, card_name: str | None) -> None:
        """The series, unless a job that has not ended pins it; or one of its cards."""
        require_admin(caller)
        await self.storage.remove_series(series, card_name, by=caller.username, now=self.clock())
        self.tell(caller.username, "hardware.remove", series, card_name or "")


def _answer(series: Series) -> SeriesAnswer:
    return SeriesAnswer(series=series.series, card_names=series.card_names)
