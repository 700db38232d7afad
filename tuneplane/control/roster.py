"""Which Node session runs here. A directory, kept by the door alone, synchronously with the sessions' lives."""

from __future__ import annotations

from attrs import define, field, frozen

from tuneplane.actors import Ref
from tuneplane.domain.ids import NodeId
from tuneplane.wire.link import GatewayLink


@frozen(eq=False)
class Entry:
    """A live session: its actor, and the link through which it can be told why it ends."""

    node: NodeId
    epoch: int
    ref: Ref
    link: GatewayLink

    def end(self, code: str, detail: str) -> None:
        """Close the link with the reason; the actor sees it and finishes. Once is enough."""
        self.link.close(code, detail)


@define
class Roster:
    """Usually one entry a Node; two for the moment in which a new session fences the former."""

    _entries: dict[NodeId, dict[int, Entry]] = field(factory=dict, init=False)

    def add(self, entry: Entry) -> None:
        self._entries.setdefault(entry.node, {})[entry.epoch] = entry

    def remove(self, node: NodeId, epoch: int) -> None:
        sessions = self._entries.get(node, {})
        sessions.pop(epoch, None)
        if not sessions:
            self._entries.pop(node, None)

    def of_node(self, node: NodeId) -> tuple[Entry, ...]:
        return tuple(self._entries.get(node, {}).values())

    def current(self, node: NodeId) -> Entry | None:
        """The newest session of ``node`` on this gateway."""
        return max(self.of_node(node), key=lambda entry: entry.epoch, default=None)

    def session(self, node: NodeId, epoch: int) -> Entry | None:
        return self._entries.get(node, {}).get(epoch)

    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for sessions in self._entries.values() for entry in sessions.values())

    def __len__(self) -> int:
        return sum(len(sessions) for sessions in self._entries.values())
