"""The log reads of one Node session: request numbers, rings, and which reads the Node must be told to end."""

from __future__ import annotations

from attrs import define, field

from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import LogCancel, LogChunk, LogQuery, LogRead

from .rings import MAX_READ_BYTES, Ring

MAX_FOLLOWERS = 16  # reads of one Node at once: they share its credit, and each may hold a ring of some MiB


@define
class Followers:
    """Owned by the session. All methods are synchronous."""

    _rings: dict[int, Ring] = field(factory=dict, init=False)
    _last: int = field(default=0, init=False)

    def open(self, query: LogQuery, ring: Ring) -> LogRead:
        """Register ``ring`` and answer the frame that asks the Node. Refused(code="too-many-readers") beyond the bound."""
        if len(self._rings) >= MAX_FOLLOWERS:
            raise Refused("too-many-readers", f"Node {query.node} already serves {MAX_FOLLOWERS} log readers; try again later")
        self._last += 1
        self._rings[self._last] = ring
        return LogRead(
            request=self._last,
            member=query.member,
            offset=query.offset,
            tail_lines=query.tail_lines,
            max_bytes=query.max_bytes if query.follow else max(1, min(query.max_bytes, MAX_READ_BYTES)),
            follow=query.follow,
        )

    def arrived(self, chunk: LogChunk) -> None:
        """Called by the link on arrival. A chunk of a read that is gone is dropped: its cancel is on its way."""
        ring = self._rings.get(chunk.request)
        if ring is not None:
            ring.put(chunk)
            if ring.ended:
                del self._rings[chunk.request]

    def sweep(self) -> list[LogCancel]:
        """Forget the reads whose readers are gone; the frames that end them at the Node."""
        gone = [request for request, ring in self._rings.items() if ring.abandoned]
        for request in gone:
            del self._rings[request]
        return [LogCancel(request=request) for request in gone]

    def end_all(self, error: str) -> None:
        for ring in self._rings.values():
            ring.end(error)
        self._rings.clear()
