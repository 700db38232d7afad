"""The mutations: one for the removal of each rule P-01 to P-10, and more. Read ``mutants``.

Where a rule is held in several places, the mutation removes it from all. Storage rules are mutated in the query modules
and, because the simulator runs on it, in the twin (the contract suite keeps the two alike).
"""

from __future__ import annotations

from .fate import Focus
from .mutation import DRIVER, EFFECTS, JOURNAL, LAUNCH, MEMBER, SESSION, SQL, TABLE, TWIN, Edit, Mutation

SHORT_LEASE = {"claim_lease": 4.0, "claim_renew": 3.0}
LATE = {"engine-late": 2.0, "engine-hang": 1.0, "crash-node": 0.5}

_ALL = (
    Mutation(
        name="no-fence",
        rule="P-01",
        why="absent counts as proof, and a create that was given up comes later",
        edits=(
            Edit(
                EFFECTS,
                "    if not record.create_sent:\n        return Outcome(MemberEvent.FENCED)  # nothing",
                "    if record:\n        return Outcome(MemberEvent.FENCED)  # nothing",
            ),
        ),
        focus=Focus(odds=LATE),
    ),
    Mutation(
        name="no-re-read-before-the-effect",
        rule="P-01",
        why="a start is begun although a stop was journalled since it was decided",
        edits=(
            Edit(
                DRIVER,
                "if record.revision != basis or action is MemberAction.KEEP:",
                "if (record.revision != basis and action in YIELDING) or action is MemberAction.KEEP:",
            ),
        ),
        focus=Focus(odds={"engine-down": 3.0}, images=True, stop_share=1.0, stop_seconds=8.0),
    ),
    Mutation(
        name="no-doubt-about-another-journal",
        rule="P-02",
        why="a Node with another journal keeps its members, and nobody ever reports their end",
        edits=(
            Edit(SQL, "    if missing:\n        await doubt_journal", "    if missing is None:\n        await doubt_journal"),
            Edit(TWIN, "    if missing:\n        _doubt(book", "    if missing is None:\n        _doubt(book"),
            Edit(SQL, 'if node["journal_id"] is None:', "if node:"),
            Edit(TWIN, "if node.journal_id is None:", "if node:"),
        ),
        focus=Focus(odds={"disk-gone": 1.0}, stop_share=0.0, rest_seconds=300.0),
    ),
    Mutation(
        name="stop-leaves-no-tombstone",
        rule="P-02",
        why="a Stop for a member that the Node does not know is accepted and leaves no evidence",
        edits=(Edit(TABLE, '(P.ABSENT, E.STOP): Row(P.WITHDRAWN, A.LOOK, "stopped")', "(P.ABSENT, E.STOP): Row(P.ABSENT, A.KEEP)"),),
        focus=Focus(odds={"disk-gone": 1.0, "cut": 1.0, "control-delay": 1.0}, stop_share=1.0, stop_seconds=8.0, rest_seconds=300.0),
    ),
    Mutation(
        name="start-again-after-a-crash",
        rule="P-03",
        why="a journal that says starting makes the next life start once more",
        edits=(Edit(TABLE, "    P.STARTING: A.LOOK,\n", "    P.STARTING: A.START,\n"),),
        focus=Focus(odds={"crash-node": 1.0, "die-at-step": 1.0, "engine-hang": 1.0}),
    ),
    Mutation(
        name="start-what-was-found-created",
        rule="P-03",
        why="a start whose answer was lost is sent a second time",
        edits=(
            Edit(TABLE, "(P.STARTING, E.FOUND_READY): Row(P.STARTING, A.REMOVE)", "(P.STARTING, E.FOUND_READY): Row(P.STARTING, A.START)"),
        ),
        focus=Focus(odds=LATE),
    ),
    Mutation(
        name="start-on-another-boot",
        rule="P-03",
        why="what was created before a reboot is started after it",
        edits=(Edit(MEMBER, "    fresh = hold_left(record, place) > 0\n", "    fresh = True\n"),),
        focus=Focus(odds={"reboot": 4.0, "engine-hang": 8.0}, stop_share=0.0),
    ),
    Mutation(
        name="believe-any-exit",
        rule="P-04",
        why="an exit code that the runtime shows after a reboot or its own restart counts",
        edits=(Edit(MEMBER, "    return bool(record.start_boot_id) and (record", "    return True or (record"),),
        focus=Focus(odds={"reboot": 1.0, "engine-restart": 1.0}),
    ),
    Mutation(
        name="believe-an-exit-of-another-boot",
        rule="P-04",
        why="exit 0 of another boot is success",
        edits=(Edit(MEMBER, "(record.start_boot_id, record.start_engine) == (place.boot_id, place.engine)", "True"),),
        focus=Focus(odds={"reboot": 1.0}),
    ),
    Mutation(
        name="success-without-exit-0",
        rule="P-04",
        why="a job whose member failed has succeeded",
        edits=(Edit(LAUNCH, "member.phase is P.TERMINATED and member.exit_code == 0 and not", "member.phase is P.TERMINATED and not"),),
        focus=Focus(odds={}),
    ),
    Mutation(
        name="no-claim-epoch",
        rule="P-05",
        why="a worker goes on with an attempt that another one has taken over",
        edits=(
            Edit(TWIN, "(row.claim_epoch, row.claim_worker) == (claim.epoch, claim.worker)", "row.claim_epoch >= claim.epoch"),
            Edit(
                SQL,
                'sql = "SELECT FROM attempt WHERE id = $1 AND claim_epoch = $2 AND claim_worker = $3 AND state = $4 FOR NO KEY UPDATE"',
                "sql = \"SELECT FROM attempt WHERE id = $1 AND claim_epoch >= $2 AND $3 <> '' AND state = $4 FOR NO KEY UPDATE\"",
            ),
        ),
        focus=Focus(odds={"storage-delay": 6.0, "database-away": 1.0}, timings=SHORT_LEASE, workers=2),
    ),
    Mutation(
        name="report-of-an-old-session",
        rule="P-06",
        why="a session that is over still writes what its Node once said",
        edits=(
            Edit(
                TWIN,
                "if session is None or session.epoch != epoch or session.closed_at is not None:\n        raise",
                "if session is None:\n        raise",
            ),
            Edit(
                SQL + "database.py",
                'sql = "SELECT FROM session WHERE node_id = $1 AND epoch = $2 AND closed_at IS NULL FOR SHARE"',
                'sql = "SELECT FROM session WHERE node_id = $1 AND epoch >= $2 FOR SHARE"',
            ),
        ),
        focus=Focus(odds={"storage-delay": 8.0, "die-at-step": 1.0, "leave": 3.0}, images=True),
    ),
    Mutation(
        name="tombstone-dropped-early",
        rule="P-06",
        why="a member that never ran is forgotten once clean, before the control plane has its end",
        edits=(Edit(TABLE, "(P.ABORTED, E.CLEANED): Row(P.ABORTED, A.AWAIT)", "(P.ABORTED, E.CLEANED): Row(P.ABSENT, A.KEEP)"),),
        focus=Focus(odds={"cut": 1.0, "control-delay": 1.0}, stop_share=1.0, stop_seconds=8.0, rest_seconds=300.0),
    ),
    Mutation(
        name="epoch-not-on-the-disk",
        rule="P-06",
        why="a daemon that is restarted follows a control plane that went back",
        edits=(
            Edit(
                JOURNAL,
                '"UPDATE meta SET session_epoch = ?", (epoch,)',
                '"UPDATE meta SET session_epoch = min(session_epoch, ?)", (epoch,)',
            ),
        ),
        focus=Focus(odds={"database-restored": 1.0, "crash-node": 1.0, "cut": 1.0}),
    ),
    Mutation(
        name="follow-a-control-plane-that-went-back",
        rule="P-07",
        why="commands of a restored database are obeyed",
        edits=(
            Edit(JOURNAL, "        older = epoch <= self._session_epoch\n", "        older = False\n"),
            Edit(JOURNAL, "return command.session_epoch >= self._session_epoch or self._obeys_in_hold(command)", "return True"),
        ),
        focus=Focus(odds={"database-restored": 1.0, "crash-node": 0.5, "cut": 1.0}),
    ),
    Mutation(
        name="hold-never-expires",
        rule="P-08",
        why="a reservation outlives the silence of the control plane",
        edits=(
            Edit(
                TABLE,
                '(P.PREPARED, E.HOLD_EXPIRED): Row(P.ABORTED, A.CLEAN, "hold-expired")',
                "(P.PREPARED, E.HOLD_EXPIRED): Row(P.PREPARED, A.AWAIT)",
            ),
        ),
        focus=Focus(odds={"cut": 4.0, "control-delay": 2.0}, timings={"hold": 10.0, "commit_margin": 1.0}, stop_share=0.0),
    ),
    Mutation(
        name="commit-at-the-last-moment",
        rule="P-08",
        why="a commit is decided when the reservation may be over before it arrives",
        edits=(Edit(LAUNCH, "return E.ALL_PREPARED if _hold_is_safe(view, now, timings) else E.PREPARE_OVERDUE", "return E.ALL_PREPARED"),),
        focus=Focus(
            odds={"database-away": 1.0, "storage-delay": 2.0, "crash-worker": 1.0},
            timings={"hold": 10.0, "commit_margin": 4.0},
            stop_share=0.0,
        ),
    ),
    Mutation(
        name="unknown-send-is-no-send",
        rule="P-09",
        why="a command whose mark has an unknown outcome is not sent in this session, and no look finds it again",
        edits=(
            Edit(
                SESSION,
                "                except StorageUnavailable:\n                    await trio.sleep(backoff.next_seconds())\n",
                "                except StorageUnavailable:\n                    return False\n",
            ),
        ),
        focus=Focus(odds={"storage-lost": 2.0}, stop_share=1.0, rest_seconds=300.0),
    ),
    Mutation(
        name="journal-not-read-again",
        rule="P-09",
        why="a Node takes a COMMIT that raised for one that did not happen",
        edits=(
            Edit(
                JOURNAL,
                '                self._database.execute("ROLLBACK")\n            self._reload()\n',
                '                self._database.execute("ROLLBACK")\n',
            ),
            Edit(JOURNAL, "            self._stale = True\n", ""),
        ),
        focus=Focus(odds={"disk-lost-answer": 2.0}, rest_seconds=300.0),
    ),
    Mutation(
        name="commit-before-all-are-prepared",
        rule="P-10",
        why="a member may start though another one is silent",
        edits=(
            Edit(LAUNCH, "if all(member.phase is P.PREPARED for", "if all(member.phase in (P.PREPARING, P.PREPARED) for"),
            Edit(TWIN, "        if phases != {MemberPhase.PREPARED}:\n            return False\n", ""),
            Edit(SQL, "        if phases != {MemberPhase.PREPARED}:\n            return False\n", ""),
        ),
        focus=Focus(odds={"control-delay": 0.5}, stop_share=0.0),
    ),
    Mutation(
        name="late-commit-passes-the-tombstone",
        rule="P-10",
        why="a Commit that was overtaken by the Stop starts what was aborted",
        edits=(
            Edit(TABLE, '    (P.ABORTED, E.COMMIT): "tombstone",\n', ""),
            Edit(
                TABLE,
                "    (P.ABORTED, E.STOP): Row(P.ABORTED, A.KEEP),\n",
                "    (P.ABORTED, E.STOP): Row(P.ABORTED, A.KEEP),\n    (P.ABORTED, E.COMMIT): Row(P.CREATING, A.CREATE),\n",
            ),
        ),
        focus=Focus(odds={"storage-delay": 4.0, "control-delay": 2.0}, timings={"hold": 10.0, "commit_margin": 1.0}, stop_seconds=9.0),
    ),
    Mutation(
        name="late-prepare-passes-the-tombstone",
        rule="P-02",
        why="a Prepare that was overtaken by the Stop takes the machine again",
        edits=(
            Edit(MEMBER, "if carries and record.phase is not NodePhase.ABSENT and", "if carries and record.plan_digest and"),
            Edit(
                MEMBER, "PREPARE and known.phase is NodePhase.ABSENT:", "PREPARE and known.phase in (NodePhase.ABSENT, NodePhase.ABORTED):"
            ),
            Edit(JOURNAL, "revision = ?3, record = ?4", "revision = ?3, record = ?4, plan = ?5"),
            Edit(TABLE, '    (P.ABORTED, E.PREPARE): "tombstone",\n', ""),
        ),
        focus=Focus(odds={"answer-late": 1.0}, stop_share=1.0, stop_seconds=2.0),
    ),
    Mutation(
        name="stop-does-not-win",
        rule="R-LCH-12",
        why="a launch goes on though its stop was accepted",
        edits=(
            Edit(TWIN, "(late_stop or (job.stop_asked_at is not None and target is not AttemptState.ENDED))", "late_stop"),
            Edit(SQL, '(late_stop or (job["stop_asked_at"] is not None and target is not AttemptState.ENDED))', "late_stop"),
            Edit(
                TWIN,
                "    if row is None or row.state is not view.state:\n        return False\n",
                "    if row is None:\n        return False\n",
            ),
            Edit(TWIN, "late_stop = job.stop_asked_at is not None and view.stop_asked_at is None", "late_stop = False"),
            Edit(TWIN, "    back = STATES.index(after.state) < STATES.index(before.state) or after", "    back = after"),
            Edit(
                SQL,
                ' AND claim_worker = $3 AND state = $4 FOR NO KEY UPDATE"',
                " AND claim_worker = $3 AND $4 <> '' FOR NO KEY UPDATE\"",
            ),
            Edit(SQL, 'late_stop = job["stop_asked_at"] is not None and view.stop_asked_at is None', "late_stop = False"),
        ),
        focus=Focus(odds={"storage-delay": 8.0}, images=True, stop_share=1.0, stop_seconds=2.0),
    ),
    Mutation(
        name="hold-released-without-evidence",
        rule="R-LCH-03",
        why="a member that is being stopped gives its cards back while it runs",
        edits=(
            Edit(
                TWIN,
                "    if ended:\n        withdraw(book, row.id, UNANSWERED, now)\n        settle",
                "    if ended or seen.phase is MemberPhase.STOPPING:\n        withdraw(book, row.id, UNANSWERED, now)\n        settle",
            ),
            Edit(SQL, "    if ended:  # the evidence", "    if ended or after is MemberPhase.STOPPING:  # the evidence"),
        ),
        focus=Focus(odds={}, stop_share=1.0),
    ),
    Mutation(
        name="stop-of-a-sent-member-is-its-end",
        rule="P-11",
        why="a stop ends a member that a Node has been told of, by our word alone",
        edits=(
            Edit(
                TWIN,
                "        if was_sent(book, member.id):\n            insert_stop",
                "        if member is None:\n            insert_stop",
            ),
            Edit(SQL, '        if await was_sent(connection, member["id"]):\n', "        if member is None:\n"),
        ),
        focus=Focus(odds={}, stop_share=1.0),
    ),
    Mutation(
        name="end-with-the-first-member",
        rule="P-11",
        why="an attempt is over, and may be replaced, while members of it have left no evidence",
        edits=(
            Edit(LAUNCH, "    if len(ended) == len(view.members):\n", "    if ended:\n"),
            Edit(TWIN, "after.state is not AttemptState.ENDED or not alive, change", "True, change"),
            Edit(TWIN, "CONCLUDE or phases <= ENDED_PHASES", "CONCLUDE or bool(phases & ENDED_PHASES)"),
            Edit(SQL, "CONCLUDE or phases <= ENDED_PHASES", "CONCLUDE or bool(phases & ENDED_PHASES)"),
        ),
        focus=Focus(odds={"cut": 1.0}),
    ),
    Mutation(
        name="create-again-after-a-crash",
        rule="R-LCH-02",
        why="a journal that says creating makes the next life send its create once more",
        edits=(Edit(TABLE, "    P.CREATING: A.LOOK,\n", "    P.CREATING: A.CREATE,\n"),),
        focus=Focus(odds={"crash-node": 1.0, "engine-hang": 4.0}),
    ),
    Mutation(
        name="commit-decided-twice",
        rule="P-05",
        why="neither claim nor state of the attempt is looked at when a step is written",
        edits=(
            Edit(TWIN, "(row.claim_epoch, row.claim_worker) == (claim.epoch, claim.worker)", "row.claim_epoch >= claim.epoch"),
            Edit(
                TWIN,
                "    if row is None or row.state is not view.state:\n        return False\n",
                "    if row is None:\n        return False\n",
            ),
            Edit(TWIN, "    back = STATES.index(after.state) < STATES.index(before.state) or after", "    back = after"),
            Edit(
                SQL,
                "claim_epoch = $2 AND claim_worker = $3 AND state = $4 FOR NO KEY UPDATE",
                "claim_epoch >= $2 AND $3 <> $4 FOR NO KEY UPDATE",
            ),
        ),
        focus=Focus(odds={"storage-delay": 6.0, "database-away": 1.0}, timings=SHORT_LEASE, workers=2, stop_share=0.0),
    ),
    Mutation(
        name="two-holders-of-a-card",
        rule="R-LCH-06",
        why="the planner, the database and the Node all forget who holds a card",
        edits=(
            Edit(
                TWIN,
                "(uuid for uuid in placeable(book, node) if uuid not in book.gpu_holds)",
                "(placeable(book, node))",
            ),
            Edit(
                TWIN,
                "if any(uuid not in cards or uuid in book.gpu_holds for uuid in member.gpu_uuids):",
                "if any(uuid not in cards for uuid in member.gpu_uuids):",
            ),
            Edit(MEMBER, "        if wanted & taken:\n", "        if wanted is taken:\n"),
        ),
        focus=Focus(odds={}, stop_share=0.0),
    ),
    Mutation(
        name="budgets-are-not-counted",
        rule="R-LCH-06",
        why="the planner, the database and the Node all forget what is held of CPU and memory",
        edits=(
            Edit(TWIN, "        cpu_millis_used=row.cpu_used,\n", "        cpu_millis_used=0,\n"),
            Edit(TWIN, "        memory_bytes_used=row.memory_used,\n", "        memory_bytes_used=0,\n"),
            Edit(
                TWIN,
                "if budgets is None or cpu > (budgets.cpu_millis or 0) or memory > (budgets.memory_bytes or 0):",
                "if budgets is None:",
            ),
            Edit(MEMBER, "        if need > budget - held:\n", "        if need > budget:\n"),
        ),
        focus=Focus(odds={}, stop_share=0.0),
    ),
    Mutation(
        name="foreign-claims-are-renewed",
        rule="R-LCH-04",
        why="a claim never runs out, so the attempts of a dead worker wait for it for ever",
        edits=(Edit(TWIN, "(row.claim_until is None or row.claim_until <= now)", "row.claim_until is None"),),
        focus=Focus(odds={"crash-worker": 1.0}, rest_seconds=300.0),
    ),
)

MUTATIONS: dict[str, Mutation] = {mutation.name: mutation for mutation in _ALL}
assert len(MUTATIONS) == len(_ALL), "two mutations of one name"
