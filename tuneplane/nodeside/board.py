"""The newest inventory and the alarms of this Node: written by one actor each, read by the session."""

from __future__ import annotations

import trio
from attrs import define, field

from .inventory import Survey


@define(eq=False)
class Board:
    """``survey`` is None until the first look at the machine is done: unknown is not zero (L-D4)."""

    survey: Survey | None = None
    seen_at: float = 0.0  # of the Trio clock
    session_alarm: str = ""
    accepted_cards: str = ""  # the change of cards that an operator has accepted, of the newest Welcome (L-D1)
    _changed: trio.Event = field(factory=trio.Event)
    _asked: trio.Event = field(factory=trio.Event)

    def post(self, survey: Survey) -> None:
        self.survey = survey
        self.seen_at = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()

    def raise_alarm(self, text: str) -> None:
        """Shown as a problem of the inventory from the next look on; "" lifts it."""
        if text != self.session_alarm:
            self.session_alarm = text
            self.look_again()

    def accept_cards(self, change: str) -> None:
        """Believed from the next look on, if the cards are still these."""
        if change != self.accepted_cards:
            self.accepted_cards = change
            self.look_again()

    def look_again(self) -> None:
        """Something that the inventory tells has changed."""
        self._asked.set()
        self._asked = trio.Event()

    def asked(self) -> trio.Event:
        """Set when the machine is to be looked at once more."""
        return self._asked

    def changed(self) -> trio.Event:
        """Set by the next survey."""
        return self._changed
