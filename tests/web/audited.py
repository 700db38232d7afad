"""Holds the audit log against the OpenAPI document: an accepted act leaves one line, a refused one and a mere look none."""

from __future__ import annotations

import httpx
from attrs import define, field

from tuneplane.storage import PostgresStorage

from .documented import DOCUMENT, find_template

SAFE = ("GET", "HEAD")
NO_ACT = {("POST", "/api/jobs/preview"): "it creates nothing"}


@define
class Audited:
    """A response hook, for a client beside which nobody else acts: ``client.event_hooks["response"].append(audited.check)``."""

    storage: PostgresStorage
    lines: list[tuple[str, str, str, bool]] = field(factory=list)  # actor, action, subject, forced
    _last: int = field(default=0, init=False)

    async def start(self) -> None:
        """Forget what was done before."""
        await self._news()
        self.lines.clear()

    async def check(self, response: httpx.Response) -> None:
        method, template = response.request.method, find_template(response.request.url.path)
        news = await self._news()
        accepted = response.is_success and method not in SAFE and (method, template) not in NO_ACT
        where = f"{method} {response.request.url.path} -> {response.status_code}: {news}"
        assert len(news) == accepted, f"{where}: an accepted act leaves one line, all else leaves none"
        if accepted:
            actions = DOCUMENT["paths"][template][method.lower()].get("x-audit-actions", [])
            assert news[0][1] in actions, f"{where}: the document says {actions}"

    async def _news(self) -> list[tuple[str, str, str, bool]]:
        sql = "SELECT sequence, actor, action, subject, forced FROM audit WHERE sequence > $1 ORDER BY sequence"
        rows = await self.storage._db.fetch(sql, self._last)
        self._last = rows[-1]["sequence"] if rows else self._last
        news = [(row["actor"], row["action"], row["subject"], row["forced"]) for row in rows]
        self.lines += news
        return news
