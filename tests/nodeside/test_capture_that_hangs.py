"""Podman may miss the end of a container that it begins to follow at that very moment: its stream then never ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define

from tests.nodeside.harness import make_plan, open_node, run_to_end
from tests.support.podman import Podman
from tuneplane.nodeside.engine import EngineClient

pytestmark = pytest.mark.container

PROMPT_SECONDS = 10.0  # two for the cut and the copy; a minute is the limit that it would run into


@define
class FollowsForEver:
    """The real engine, but for a followed log that ends before it begins to tell, and then hangs."""

    real: EngineClient

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @asynccontextmanager
    async def open_logs(self, container: str, *, follow: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        if follow:
            yield _nothing()
            return
        async with self.real.open_logs(container, follow=False) as pieces:
            yield pieces


async def _nothing() -> AsyncIterator[bytes]:
    await trio.sleep_forever()
    yield b""


async def test_log_whose_stream_does_not_end_is_cut_and_copied_whole(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-13, R-LCH-14: neither the clean-up nor the last lines wait for it."""
    plan = make_plan(image, ("sh", "-c", "sleep 0.5; seq 1 20000; exit 4"))
    async with open_node(tmp_path / "state", podman, engine=FollowsForEver) as node:  # type: ignore[arg-type]
        with trio.fail_after(PROMPT_SECONDS):
            record = await run_to_end(node, plan)
        assert record.exit_code == 4
        assert (await node.log_bytes(plan.member)).split() == [str(number).encode() for number in range(1, 20001)]
