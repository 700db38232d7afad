"""Level-triggered, bounded waits for asynchronous tests: they say what they last saw."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import trio

WAIT_SECONDS = 15.0  # what is waited for takes milliseconds; two busy cores may take far longer
LOOK_SECONDS = 0.01


async def eventually(look: Callable[[], object | Awaitable[object]], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Look again and again until the answer is true; AssertionError with the last answer after ``seconds``."""
    seen: object = None
    with trio.move_on_after(seconds):
        while True:
            answer = look()
            seen = await answer if inspect.isawaitable(answer) else answer
            if seen:
                return
            await trio.sleep(LOOK_SECONDS)
    raise AssertionError(f"waited {seconds:g} s for {what}; last seen: {seen!r}")
