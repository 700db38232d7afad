"""Columns of JSON that are read far more often than they change, decoded once a text.

An allocator reads the head of each queue and all Nodes of its Fleet at every look. What is decoded is immutable, and the
same text is the same value.
"""

from __future__ import annotations

import json
from functools import lru_cache

from tuneplane.domain import codec
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.jobspec import JobSpec

MOST_SPECS = 20_000  # the heads of twenty queues
MOST_SPEC_TEXT = 2048  # characters; a longer one is rare, and decoded anew, so that all of them stay below 200 MB
MOST_INVENTORIES = 12_000  # of 10,000 Nodes, and some that have just changed: 10 kB each


def spec_of(text: str) -> JobSpec:
    """The column ``job.spec``. Not in SQL: PostgreSQL does not read JSON that has an escaped NUL in it."""
    return _kept_spec(text) if len(text) <= MOST_SPEC_TEXT else _spec(text)


def _spec(text: str) -> JobSpec:
    return codec.decode(JobSpec, json.loads(text))


_kept_spec = lru_cache(maxsize=MOST_SPECS)(_spec)


@lru_cache(maxsize=MOST_INVENTORIES)
def inventory_of(text: str) -> Inventory:
    """The column ``node.inventory``."""
    return codec.decode(Inventory, json.loads(text))
