"""Archives an ended member's log to the storage root, so that it outlives container, record and Node (R-LCH-13, L-E7).

The storage root is touched by child processes with a deadline only. What cannot be archived is tried again a few times,
then said in the member's reason, and stays on the Node until Forget, which tries once more. None of it holds capacity:
that was released by the evidence of the end.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import trio

from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.faultpoint import fault_point
from tuneplane.domain.log_archive import NOTE, archive_note, archive_path, choose_parts, spell_header
from tuneplane.domain.node_member import NodeMember
from tuneplane.domain.plan import MemberPlan, read_plan

from . import storage_probe
from .core import NodeCore
from .logs import MemberLog
from .storage_probe import StorageTrouble

log = logging.getLogger(__name__)

WRITER = Path(__file__).with_name("archive_writer.py")
TRY_SECONDS = 30.0  # 64 MiB at 2 MiB/s; a mount that is slower than that is ill
WAITS_SECONDS = (1.0, 4.0)  # between the tries: what passes by itself has passed by then
ARCHIVE_SECONDS = 75.0  # tries, waits and the queue for one of core.archives; then the clean-up goes on without it


async def archive_log(core: NodeCore, record: NodeMember) -> str:
    """Archive the complete log; "" when it is there, or there is nothing to archive, or nowhere; else why not."""
    problem = "the storage root was too slow for all logs that were to be archived"
    with trio.move_on_after(ARCHIVE_SECONDS):
        for wait in (*WAITS_SECONDS, 0.0):
            try:
                await archive_once(core, record)
            except (StorageTrouble, InvalidInput, OSError) as error:
                problem = str(error)
                log.warning("the log of %s cannot be archived: %s", record.member, problem)
            else:
                return ""
            await trio.sleep(wait)
    return NOTE + problem


async def archive_again(core: NodeCore, record: NodeMember) -> None:
    """The last try, before a log that is not archived is forgotten."""
    if not archive_note(record.reason_detail):
        return
    try:
        await archive_once(core, record)
    except (StorageTrouble, InvalidInput, OSError) as error:
        log.error("the log of %s is forgotten, and was never archived: %s", record.member, error)


async def archive_once(core: NodeCore, record: NodeMember) -> None:
    """Raises StorageTrouble, or InvalidInput for a plan that cannot be read. May be repeated."""
    found = await core.logs.log(record.member)
    data = await core.journal.plan(record.member)
    if not data or not (record.start_boot_id or found.end):
        return  # it never ran: there is nothing to be read, and nobody asks for it
    plan = read_plan(data, record.plan_digest)
    if not plan.storage_root:
        return
    async with core.archives:
        command = [sys.executable, "-I", "-S", str(WRITER), json.dumps(_order(plan, found))]
        with fault_point("node.logs.archive"):
            await storage_probe.run_killable(command, TRY_SECONDS, f"archiving the log of {record.member} to {plan.storage_root}")


def _order(plan: MemberPlan, found: MemberLog) -> dict[str, object]:
    *folders, name = archive_path(plan.job, plan.attempt, plan.member)
    index = choose_parts(found.first, found.end)
    sources = [source for part in index.parts for source in found.sources(part.offset, part.size)]
    return {
        "root": plan.storage_root,
        "folders": folders,
        "name": name,
        "header": spell_header(index).decode(),
        "sources": [[str(path), skip, count] for path, skip, count in sources],
    }
