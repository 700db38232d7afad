"""Specifications of jobs, decoded once: a job's never changes, and an allocator reads the head of each queue at every look."""

from __future__ import annotations

import json
from functools import lru_cache

from tuneplane.domain import codec
from tuneplane.domain.jobspec import JobSpec

MOST_KEPT = 20_000  # more than the heads of twenty queues
MOST_TEXT = 2048  # characters; a longer one is rare, and decoded anew, so that all of them stay below 200 MB


def spec_of(text: str) -> JobSpec:
    """The column ``job.spec`` as a value. Not in SQL: PostgreSQL does not read JSON that has an escaped NUL in it."""
    return _kept(text) if len(text) <= MOST_TEXT else _decode(text)


def _decode(text: str) -> JobSpec:
    return codec.decode(JobSpec, json.loads(text))


_kept = lru_cache(maxsize=MOST_KEPT)(_decode)
