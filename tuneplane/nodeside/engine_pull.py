"""What an engine says while it pulls: JSON objects on lines, in each engine's words. Errors come inside a 200 answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from attrs import define, field

from tuneplane.domain.node_ports import PullFailed, PullProgress

MAX_LINE_BYTES = 1 << 20  # a progress line is short; a longer one is not an engine talking
MAX_LAYERS = 1024  # an image has at most 127 layers; names beyond this are not counted
# Another try cannot help when the registry says one of these (L-K3); anything else may be the network.
LASTING = (
    "manifest unknown",
    "name unknown",
    "not found",
    "no such image",
    "denied",
    "unauthorized",
    "invalid reference",
    "manifest invalid",
)


@define
class PullMeter:
    """Adds up the layers' bytes (Docker and Podman's compatible API tell them, ``/libpod`` does not)."""

    _done: dict[str, int] = field(factory=dict)
    _total: dict[str, int] = field(factory=dict)

    def feed(self, message: dict[str, Any]) -> PullProgress:
        detail = message.get("progressDetail") or {}
        layer = str(message.get("id", ""))
        if detail.get("total") and (layer in self._total or len(self._total) < MAX_LAYERS):
            self._total[layer] = int(detail["total"])
            if "extract" not in str(message.get("status", "")).lower():
                self._done[layer] = int(detail.get("current", 0))
        text = str(message.get("status") or message.get("stream") or "").strip()
        return PullProgress(done_bytes=sum(self._done.values()), total_bytes=sum(self._total.values()), detail=text)


async def read_pull(image: str, pieces: AsyncIterator[bytes], progress: Callable[[PullProgress], None]) -> None:
    """Read to the end; raise PullFailed for the first error that the engine reports."""
    meter = PullMeter()
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            _read_line(image, line, meter, progress)
        if len(buffer) > MAX_LINE_BYTES:
            raise PullFailed(image, "the container runtime's answer makes no sense (a line without end)", lasting=False)
    _read_line(image, bytes(buffer), meter, progress)


def _read_line(image: str, line: bytes, meter: PullMeter, progress: Callable[[PullProgress], None]) -> None:
    if not line.strip():
        return
    try:
        message = json.loads(line)
    except ValueError:
        raise PullFailed(image, f"the container runtime's answer makes no sense: {line[:100]!r}", lasting=False) from None
    if not isinstance(message, dict):
        return
    error = message.get("error") or (message.get("errorDetail") or {}).get("message")
    if error:
        raise PullFailed(image, str(error), lasting=any(word in str(error).lower() for word in LASTING))
    progress(meter.feed(message))
