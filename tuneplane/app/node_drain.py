"""``tuneplane-node drain``: finish this, take no more; asked on the machine itself (L-E15)."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from tuneplane.domain import codec
from tuneplane.domain.nodes import Left
from tuneplane.nodeside.drain import Heard, Wish, ask_drain, load_heard, load_wish
from tuneplane.nodeside.journal_peek import look_for_members

LOOK_SECONDS = 1.0  # between two looks at the answer's file
TAKEN_BACK = 1  # exit status: somebody asked for the opposite meanwhile
STILL_DRAINING = 3  # exit status: remembered, and not done when the time was over


@frozen(kw_only=True)
class Standing:
    """How the drain stands. ``left`` is the control plane's list once it has heard of the wish, before that the journal's."""

    wish: Wish
    heard: Heard | None  # of this very wish
    left: tuple[Left, ...]
    daemon_runs: bool  # when it was asked: to look again would take the daemon's lock, for a moment, from one that starts
    taken_back: bool = False  # by a later wish on this machine, so that it will never be answered

    @property
    def is_done(self) -> bool:
        return self.heard is not None and (self.heard.drained or not self.wish.wanted)

    def __str__(self) -> str:
        if self.taken_back:
            return "taken back: the opposite was asked for on this machine meanwhile"
        if not self.wish.wanted:
            return "takes work again" if self.heard is not None else f"remembered: it will take work again; {self._why_unheard}"
        if self.heard is None:
            return f"remembered: it will take no more work; {self._why_unheard}{self._spell_left()}"
        return "drained: nothing is left" if self.is_done else f"takes no more work{self._spell_left()}"

    @property
    def _why_unheard(self) -> str:
        if not self.daemon_runs:
            return "the daemon does not run, and tells the control plane when it does"
        return "the control plane has not answered yet (it may be away; the daemon goes on telling it)"

    def _spell_left(self) -> str:
        if not self.left:
            return "; nothing is left here, which the control plane has yet to confirm"
        return f"; {len(self.left)} left: " + ", ".join(f"{one.member} {one.phase.value}" for one in self.left)

    def facts(self) -> dict[str, Any]:
        return {
            "wanted": self.wish.wanted,
            "reason": self.wish.reason,
            "asked_at": codec.encode(self.wish.asked_at),
            "daemon_runs": self.daemon_runs,
            "heard": self.heard is not None,
            "drained": self.wish.wanted and self.is_done,
            "taken_back": self.taken_back,
            "left": codec.encode(self.left),
        }


def look(state_dir: Path, wish: Wish, daemon_runs: bool) -> Standing:
    """A later wish for the same counts as this one: only its reason is another."""
    newest = load_wish(state_dir) or wish
    if newest.wanted != wish.wanted:
        return Standing(wish=wish, heard=None, left=look_for_members(state_dir), daemon_runs=daemon_runs, taken_back=True)
    wish, answer = newest, load_heard(state_dir)
    heard = answer if answer is not None and answer.revision == wish.revision else None
    return Standing(wish=wish, heard=heard, left=heard.left if heard is not None else look_for_members(state_dir), daemon_runs=daemon_runs)


def drain(state_dir: Path, daemon_runs: bool, *, wanted: bool, reason: str, seconds: float, as_json: bool) -> None:
    """Keep the wish, then wait ``seconds`` at most until the control plane has confirmed it (and, of a drain, its end)."""
    wish = ask_drain(state_dir, wanted=wanted, reason=reason, now=datetime.now(UTC))
    standing = _wait(state_dir, wish, daemon_runs, seconds, as_json)
    click.echo(json.dumps(standing.facts(), indent=2) if as_json else str(standing))
    if seconds > 0 and not standing.is_done:
        sys.exit(TAKEN_BACK if standing.taken_back else STILL_DRAINING)


def _wait(state_dir: Path, wish: Wish, daemon_runs: bool, seconds: float, as_json: bool) -> Standing:
    """Progress goes to the error stream, so that the output is one answer."""
    deadline, told = time.monotonic() + seconds, ""
    while True:
        standing = look(state_dir, wish, daemon_runs)
        if standing.is_done or standing.taken_back or time.monotonic() >= deadline:
            return standing
        if str(standing) != told and not as_json:
            told = str(standing)
            click.echo(told, err=True)
        time.sleep(min(LOOK_SECONDS, max(deadline - time.monotonic(), 0.0)))
