"""Is a history of concurrent operations explained by *some* order of them, one after the other? (Wing and Gong, with Lowe's memory.)

An operation that returned before another one was called comes before it. Every completed operation must give, on the
sequential model, in its place in the order, the very result that its caller got. One whose outcome is unknown (P-09) may
take effect at any moment after its call, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from attrs import field, frozen

MOST_STEPS = 200_000  # tried operations of one history: more means that the history is too wide, not that it is wrong


SHOWN = 120  # characters of a result: a whole job is unreadable


class Model(Protocol):
    """The sequential object. ``keep`` gives a value that ``restore`` takes back and that compares equal for equal states."""

    def keep(self) -> object: ...

    def restore(self, kept: object) -> None: ...


@frozen(eq=False)
class Call:
    """One operation: who, what, when. ``apply`` does it on the model and gives the result there, in the form of ``result``."""

    client: int
    what: str
    invoked: int
    returned: int | None  # None: its outcome is unknown
    result: Hashable = None
    apply: Callable[[Model], Hashable] = field(repr=False, kw_only=True)

    def __str__(self) -> str:
        until = "?" if self.returned is None else self.returned
        result = "unknown" if self.returned is None else str(self.result)
        return f"{self.invoked:4}-{until:<4} client {self.client}: {self.what} -> {result[:SHOWN]}"


class TooWide(Exception):
    """The search gave up."""


@frozen
class NotLinearizable(Exception):
    """No order explains the history. ``order`` is the longest prefix that one explains, ``stuck`` what then does not fit."""

    order: tuple[Call, ...]
    stuck: tuple[tuple[Call, Hashable], ...]  # the candidates and what the model answers there

    def __str__(self) -> str:
        done = "\n".join(f"  {call}" for call in self.order)
        left = "\n".join(f"  {call}\n{_differences(call.result, answer)}" for call, answer in self.stuck)
        return f"no sequential order explains the history. The longest one:\n{done}\nand then none of\n{left}"


def _differences(got: Hashable, says: Hashable) -> str:
    if isinstance(got, tuple) and isinstance(says, tuple) and len(got) == len(says):
        return "".join(_differences(one, other) for one, other in zip(got, says, strict=True) if one != other)
    return f"      got {got}, the model says {says}\n"


def linearize(calls: Sequence[Call], model: Model) -> tuple[Call, ...]:
    """An order that explains ``calls`` on ``model`` (left in its state at the end). NotLinearizable, or TooWide."""
    return _Search(tuple(calls), model).run()


class _Search:
    def __init__(self, calls: tuple[Call, ...], model: Model) -> None:
        self.calls = calls
        self.model = model
        self.known = sum(1 << number for number, call in enumerate(calls) if call.returned is not None)
        self.seen: dict[int, list[object]] = {}
        self.steps = 0
        self.longest: tuple[int, ...] = ()
        self.stuck: tuple[tuple[int, Hashable], ...] = ()

    def run(self) -> tuple[Call, ...]:
        order = self._from(0, [])
        if order is None:
            stuck = tuple((self.calls[number], answer) for number, answer in self.stuck)
            raise NotLinearizable(tuple(self.calls[number] for number in self.longest), stuck)
        return tuple(self.calls[number] for number in order)

    def _from(self, done: int, order: list[int]) -> list[int] | None:
        """The rest of an order from the model's present state; it is back in this state when there is none."""
        if done & self.known == self.known:
            return order
        kept = self.model.keep()
        if self._was_here(done, kept):
            return None
        refused: list[tuple[int, Hashable]] = []
        for number in self._candidates(done):
            call = self.calls[number]
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise TooWide(f"{len(self.calls)} operations: {self.steps} steps")
            answer = call.apply(self.model)
            if call.returned is None or answer == call.result:
                found = self._from(done | 1 << number, [*order, number])
                if found is not None:
                    return found
            else:
                refused.append((number, answer))
            self.model.restore(kept)
        if len(order) >= len(self.longest):
            self.longest, self.stuck = tuple(order), tuple(refused)
        return None

    def _candidates(self, done: int) -> list[int]:
        """Whatever is left and was called before anything left had returned; in the order of their returns, unknown ones last."""
        left = [number for number in range(len(self.calls)) if not done >> number & 1]
        first = min(returned for number in left if (returned := self.calls[number].returned) is not None)
        open_ = [number for number in left if self.calls[number].invoked < first]
        return sorted(open_, key=lambda number: (self.calls[number].returned is None, self.calls[number].returned or 0))

    def _was_here(self, done: int, state: object) -> bool:
        states = self.seen.setdefault(done, [])
        if state in states:
            return True
        states.append(state)
        return False
