"""What runs here, is Tuneplane's, and is not known: reported with all that it uses, never touched by itself (P-07, L-C13).

Two kinds: containers with this Node's label that the journal does not know, and members that the journal knows and the
control plane does not (its database was restored). What carries no label of ours, or another Node's, is none of our
business.
"""

from __future__ import annotations

import re

from tuneplane.domain.frames import Command
from tuneplane.domain.ids import MemberId, container_name
from tuneplane.domain.inventory import MOST_STRANGERS, Stranger
from tuneplane.domain.member_table import ENDED
from tuneplane.domain.node_member import LABEL_CARDS, LABEL_CPU, LABEL_FENCE, LABEL_MEMBER, LABEL_MEMORY, LABEL_NODE, NodeMember
from tuneplane.domain.node_ports import ContainerState, Life

from .core import NodeCore

CARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")  # a gateway takes each
MOST_CARDS = 64  # of one machine
MOST_DIGITS = 18


async def find_strangers(core: NodeCore) -> tuple[tuple[Stranger, ...], tuple[str, ...]]:
    """The strangers, at most MOST_STRANGERS, and a problem when there are more. Raises what the engine raises."""
    listed = await core.engine.list_labelled(LABEL_NODE, core.node)
    unknown = sorted((each for each in listed if _is_stranger(core, each)), key=lambda each: each.id)
    seen = [await core.engine.inspect(each.id) for each in unknown[:MOST_STRANGERS]]
    running = [_of_container(each) for each in seen if each is not None and _is_stranger(core, each)]
    records = [record for record in core.journal.members() if _is_unclaimed(core, record)]
    found = [*running, *(_of_record(record) for record in records)]
    more = len(unknown) + len(records) - MOST_STRANGERS
    problem = f"{more} more containers of Tuneplane's run here that nobody knows" if more > 0 else ""
    return tuple(found[:MOST_STRANGERS]), ((problem,) if problem else ())


async def why_no_stranger(core: NodeCore, command: Command) -> str:
    """Why an operator's stop is not obeyed: the code of the answer. Asked again of the engine: what was listed may be gone,
    or another's by now. "": it is a stranger, and may be stopped. Raises what the engine raises."""
    record = core.journal.member(command.member)
    if record is not None:
        return "" if _is_unclaimed(core, record) or record.stranger else "known-member"
    found = await core.engine.inspect(command.container) if command.container else None
    if found is None or found.id != command.container or not _is_stranger(core, found):
        return "no-such-stranger"
    return "" if found.labels.get(LABEL_MEMBER) == command.member else "no-such-stranger"


async def is_leftover(core: NodeCore, command: Command) -> bool:
    """Whether an operator's stop is for a container that runs though its member, known here, has ended and was cleaned: a
    create or start that came late, or somebody's by hand. Asked of the engine; raises what it raises."""
    record = core.journal.member(command.member)
    if record is None or not _is_over(record) or not command.container:
        return False
    found = await core.engine.inspect(command.container)
    return (
        found is not None
        and found.id == command.container
        and found.labels.get(LABEL_MEMBER) == command.member
        and _is_stranger(core, found)
    )


def _is_unclaimed(core: NodeCore, record: NodeMember) -> bool:
    return record.phase not in ENDED and (record.stranger or record.member in core.unclaimed)


def _is_stranger(core: NodeCore, found: ContainerState) -> bool:
    if found.life is not Life.RUNNING or found.labels.get(LABEL_FENCE) or found.labels.get(LABEL_NODE) != core.node:
        return False
    record = core.journal.member(MemberId(found.labels.get(LABEL_MEMBER, "")))
    return record is None or _is_over(record)


def _is_over(record: NodeMember) -> bool:
    return record.phase in ENDED and record.cleaned


def _of_container(found: ContainerState) -> Stranger:
    """By the labels that we wrote when it was created; of an older daemon's container the amounts are unknown."""
    return Stranger(
        container=found.id,
        name=found.name,
        member=found.labels.get(LABEL_MEMBER, ""),
        image=found.image,
        since=found.started_at,
        gpu_uuids=_cards(found.labels.get(LABEL_CARDS)),
        cpu_millis=_amount(found.labels.get(LABEL_CPU)),
        memory_bytes=_amount(found.labels.get(LABEL_MEMORY)),
    )


def _of_record(record: NodeMember) -> Stranger:
    return Stranger(
        container=record.container_id,
        name=container_name(record.member),
        member=record.member,
        since=record.started_at,
        gpu_uuids=record.gpu_uuids,
        cpu_millis=record.cpu_millis,
        memory_bytes=record.memory_bytes,
    )


def _cards(label: str | None) -> tuple[str, ...] | None:
    uuids = tuple(label.split(",")) if label else ()
    if label is None or len(uuids) > MOST_CARDS or not all(CARD.fullmatch(uuid) for uuid in uuids):
        return None
    return uuids


def _amount(label: str | None) -> int | None:
    if label is None or not label.isascii() or not label.isdigit() or len(label) > MOST_DIGITS:
        return None
    return int(label)
