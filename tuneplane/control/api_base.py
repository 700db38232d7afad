"""What the application services share: who calls, and what every one of them is made of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog
from attrs import frozen

from tuneplane.domain.errors import Refused
from tuneplane.domain.ids import ID_ENTROPY_BYTES, UserName, spell_id
from tuneplane.domain.jobs import User
from tuneplane.domain.ports import Storage

Clock = Callable[[], datetime]
Entropy = Callable[[int], bytes]

log = structlog.get_logger("tuneplane.control.api")


@frozen(kw_only=True)
class Base:
    """Storage, clock (UTC) and randomness: the ports of every application service."""

    storage: Storage
    clock: Clock
    entropy: Entropy

    def new_id(self, prefix: str) -> str:
        return spell_id(prefix, self.entropy(ID_ENTROPY_BYTES))

    def tell(self, actor: UserName, action: str, subject: str, detail: str = "", *, forced: bool = False) -> None:
        """Log an act whose row of the audit log was written in the act's own unit (P-09)."""
        log.info("audit", actor=actor, action=action, subject=subject, detail=detail, forced=forced)

    async def audit(self, actor: UserName, action: str, subject: str, detail: str = "", *, forced: bool = False) -> None:
        """One row of the audit log for what is no act: a refusal that operators want to see (L-A13). Acts write theirs themselves."""
        self.tell(actor, action, subject, detail, forced=forced)
        await self.storage.audit(actor, action, subject, detail, forced, self.clock())


def require_admin(caller: User) -> None:
    """R-FLT-05: Refused(code="forbidden") unless ``caller`` is an administrator."""
    if caller.role != "admin":
        raise Refused("forbidden", "only an administrator may do this")
