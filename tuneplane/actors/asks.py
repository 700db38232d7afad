"""Asks that wait for each other: found when the last one is about to be sent, not when all deadlines have passed.

A mailbox is *stuck* when each of its workers waits for a reply from a stuck mailbox. An ask that would close such a
ring is refused. Only asks that a handler itself awaits count: the ``run`` body and effect tasks hold no worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trio.lowlevel import Task

from .errors import AskCycle
from .mailbox import Letter, Mailbox
from .trace import current_point


@contextmanager
def waiting_for(target: Mailbox, task: Task) -> Iterator[None]:
    """Note that ``task``, if it is a worker with a letter in hand, waits for ``target``. AskCycle if that is for ever."""
    asker = _mailbox_of(task)
    if asker is None:
        yield
        return
    _refuse_cycle(asker, target)
    asker.waits_on.append(target)
    try:
        yield
    finally:
        asker.waits_on.remove(target)


def _mailbox_of(task: Task) -> Mailbox | None:
    letter = current_point.get()
    return letter.mailbox if isinstance(letter, Letter) and letter.mailbox.in_hand.get(letter) is task else None


def _refuse_cycle(asker: Mailbox, target: Mailbox) -> None:
    if len(asker.waits_on) + 1 < asker.spec.workers:
        return  # another worker of the asker is free to answer whoever comes round
    ring = _ring(target, (asker,))
    if ring is not None:
        raise AskCycle(tuple(f"{box.path}:{box.spec.name}" for box in (*ring, asker)))


def _ring(box: Mailbox, way: tuple[Mailbox, ...]) -> tuple[Mailbox, ...] | None:
    """The way on from ``box`` if every worker it has waits along ``way``; None as soon as one of them may answer."""
    if box in way:
        return way
    if len(box.waits_on) < box.spec.workers:
        return None
    longest = way
    for target in box.waits_on:
        ring = _ring(target, (*way, box))
        if ring is None:
            return None
        longest = max(longest, ring, key=len)
    return longest
