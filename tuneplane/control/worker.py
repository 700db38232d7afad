"""The worker's supervision tree."""

from __future__ import annotations

from tuneplane.actors import ChildSpec, Strategy, SupervisorSpec
from tuneplane.domain.ids import WorkerId
from tuneplane.domain.ports import Storage
from tuneplane.domain.timings import Timings

from .allocator import Allocator
from .launches import Consumer
from .lookout import Lookout
from .patience import Backoff, Clock, Entropy
from .retention import Retention


def worker_root(
    storage: Storage, worker_id: WorkerId, timings: Timings, clock: Clock, entropy: Entropy, *, storage_root: str = ""
) -> SupervisorSpec:
    """``worker``: lookout, launches (pool), consumer, allocator, retention. ``storage_root`` serves Fleets that name none.

    Any number of workers share one database. The consumer stops before the launches, so that its claims go back while
    what they drive is still known.
    """

    def backoff() -> Backoff:
        return Backoff(entropy)

    def lookout() -> Lookout:
        return Lookout(storage=storage, timings=timings, clock=clock, backoff=backoff())

    def consumer() -> Consumer:
        return Consumer(storage=storage, worker=worker_id, timings=timings, clock=clock, backoff=backoff())

    def allocator() -> Allocator:
        return Allocator(storage=storage, timings=timings, clock=clock, backoff=backoff(), storage_root=storage_root)

    def retention() -> Retention:
        return Retention(storage=storage, timings=timings, clock=clock, backoff=backoff())

    return SupervisorSpec(
        name="worker",
        children=(
            ChildSpec(name="lookout", factory=lookout),
            SupervisorSpec(name="launches", strategy=Strategy.POOL),
            ChildSpec(name="consumer", factory=consumer),
            ChildSpec(name="allocator", factory=allocator),
            ChildSpec(name="retention", factory=retention),
        ),
    )
