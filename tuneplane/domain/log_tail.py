"""Where the last lines of a log begin: a backwards search that is handed blocks and reads nothing itself.

One search serves a Node's own files and the archive. Its cost is that of the bytes it looks at, never of the log's size
(L-E13), and a line longer than the window ends it (L-E6).
"""

from __future__ import annotations

from attrs import define, field

from .frames import LOG_CHUNK_BYTES

TAIL_SCAN_BYTES = 8 << 20  # how far back the last lines are looked for: one line may be longer than memory


@define
class TailSearch:
    """Ask :meth:`next_block`, read it, give it to :meth:`feed`; when there is none left, ``offset`` is the answer."""

    lines: int
    end: int  # of the log
    least: int  # look back no further than this
    offset: int = field(init=False)
    _at: int = field(init=False)
    _left: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._at, self._left = self.end, self.lines
        self.least = max(self.least, self.end - TAIL_SCAN_BYTES)
        self.offset = self.least if self.lines else self.end

    def next_block(self, floor: int = 0) -> tuple[int, int] | None:
        """Offset and size of the block to be looked at, none of it before ``floor``; None when the search is over."""
        if self._left <= 0 or self._at <= self.least:
            return None
        start = max(self.least, floor, self._at - LOG_CHUNK_BYTES)
        return (start, self._at - start) if start < self._at else None

    @property
    def behind(self) -> int:
        """What lies before this offset was not looked at yet."""
        return self._at

    def feed(self, start: int, block: bytes) -> None:
        """The bytes from ``start``. None came: the log was cut meanwhile, and the search ends at what it has."""
        at = len(block)
        while self._left > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
            if start + at + 1 == self.end:
                continue  # the newline that ends the last line
            self._left -= 1
            if self._left == 0:
                self.offset = start + at + 1
        self._at = start if block else self.least
