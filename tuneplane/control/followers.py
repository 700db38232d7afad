"""The log reads of one Node session: request numbers, rings, and which reads the Node must be told to end."""

from __future__ import annotations

from attrs import define, field

from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import MAX_LOG_FOLLOWS, MAX_LOG_READS, LogCancel, LogChunk, LogQuery, LogRead

from .rings import MAX_READ_BYTES, Ring


@define
class Followers:
    """Owned by the session. All methods are synchronous."""

    _rings: dict[int, Ring] = field(factory=dict, init=False)
    _bounded: set[int] = field(factory=set, init=False)  # of the rings, those of bounded reads
    _last: int = field(default=0, init=False)

    def open(self, query: LogQuery, ring: Ring) -> LogRead:
        """Register ``ring`` and answer the frame that asks the Node. Refused(code="too-many-readers") beyond the bound."""
        self._check_room(query)
        self._last += 1
        self._rings[self._last] = ring
        if not query.follow:
            self._bounded.add(self._last)
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
                self._drop(chunk.request)

    def sweep(self) -> list[LogCancel]:
        """Forget the reads whose readers are gone; the frames that end them at the Node."""
        gone = [request for request, ring in self._rings.items() if ring.abandoned]
        for request in gone:
            self._drop(request)
        return [LogCancel(request=request) for request in gone]

    def end_all(self, error: str) -> None:
        for ring in self._rings.values():
            ring.end(error)
        self._rings.clear()
        self._bounded.clear()

    def _check_room(self, query: LogQuery) -> None:
        bounded = len(self._bounded)
        have, most = (len(self._rings) - bounded, MAX_LOG_FOLLOWS) if query.follow else (bounded, MAX_LOG_READS)
        if have >= most:
            what = "followers of logs" if query.follow else "log reads"
            raise Refused("too-many-readers", f"Node {query.node} already serves {most} {what}; try again later")

    def _drop(self, request: int) -> None:
        del self._rings[request]
        self._bounded.discard(request)
