"""The room that many placements share gives what judging every Node anew would give (R-PLC-03, R-PLC-05)."""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH, fleets, job_specs, node_lists
from tuneplane.domain.fit import free_amounts, needs, shape_of
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.nodes import Node
from tuneplane.domain.placement import MustWait, Placed, Room, open_room, place


def _ready(nodes: list[Node]) -> list[Node]:
    """Mostly open to work: otherwise there is nothing to share."""
    lease = EPOCH.replace(year=2027)
    link = [attrs.evolve(one.connection, state="connected", lease_expires_at=lease) for one in nodes]
    return [attrs.evolve(one, cordons=(), connection=link[number], inventory_healthy=True) for number, one in enumerate(nodes)]


@settings(max_examples=40)
@given(st.lists(job_specs(), min_size=1, max_size=8), fleets(), node_lists())
def test_room_answers_as_if_every_node_was_judged_anew(specs: list[JobSpec], fleet: Fleet, nodes: list[Node]) -> None:
    room = open_room(fleet, _ready(nodes), EPOCH)
    for number, spec in enumerate(specs + specs):
        answer = room.place(spec, str(number)) or room.why(spec)
        assert answer == place(spec, fleet, list(room.nodes.values()), EPOCH, str(number))
        if isinstance(answer, Placed):
            room.take(spec, answer)


@settings(max_examples=40)
@given(st.lists(job_specs(), min_size=1, max_size=12), fleets(), node_lists())
def test_room_never_gives_more_than_there_is(specs: list[JobSpec], fleet: Fleet, nodes: list[Node]) -> None:
    """R-PLC-05: over any sequence of jobs, no budget is exceeded and no card or port is given twice."""
    room = open_room(fleet, _ready(nodes), EPOCH)
    given_away: set[tuple[str, object]] = set()
    for spec in specs:
        answer = room.place(spec)
        if answer is None:
            _check_reasons(room, spec)
            continue
        for one in answer.members:
            taken = {(one.node, card) for card in one.gpu_uuids} | {(one.node, port) for port in one.ports}
            assert taken.isdisjoint(given_away)
            given_away |= taken
            have = free_amounts(room.nodes[one.node])
            assert all(need <= amount for (_, need), amount in zip(needs(shape_of(spec)), have, strict=True))
        room.take(spec, answer)


def _check_reasons(room: Room, spec: JobSpec) -> None:
    """A reason for every Node that is refused, and for no other."""
    answer = room.why(spec)
    assert isinstance(answer, MustWait)
    about = [one.subject for one in answer.reasons if one.subject in room.nodes]
    assert len(about) == len(set(about))
    assert len(room.nodes) - len(about) < spec.pool.nodes
    assert all(one.code and one.detail for one in answer.reasons)
