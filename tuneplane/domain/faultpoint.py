"""Named fault points: every durable write and every external effect passes one.

Production has no hook, so a pass costs one ``None`` check. The fault tests install a hook that kills the process
before or after the step, or lets the step happen and then loses its answer. ``FAULT_POINTS`` is the generated test's
list: a name that is used and not listed, or listed and never reached, fails the build (house.md, "Proof").
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

FaultHook = Callable[[str, str], None]
"""``hook(name, moment)`` with moment ``before`` or ``after``; it may kill the process or raise :class:`AnswerLost`."""


class AnswerLost(OSError):
    """Raised by a fault hook after the step took place: the caller cannot know whether it did."""


# name -> the process that passes it and what is made durable or done there
FAULT_POINTS: dict[str, str] = {
    "app.write-file": "app: a file of the data directory, such as a secret or the console's certificate",
    "control.acknowledge": "gateway: an acknowledgement of a stored observation leaves for the Node",
    "control.cache-identity": "api: certificate and key of a TLS identity appear in their directory",
    "control.send-command": "gateway: a command, marked as sent, leaves for the Node",
    "storage.embedded_create": "app: the embedded PostgreSQL's cluster",
    "storage.embedded_start": "app: the embedded PostgreSQL's process",
    "storage.migrate": "app: the schema's migrations, all of them or none",
    "storage.create_user": "api: an account",
    "storage.update_user": "api: an account's role, state or password, and the end of its sessions",
    "storage.create_project": "api: a project",
    "storage.set_member": "api: a member of a project, or the end of a membership",
    "storage.open_console_session": "api: a console session",
    "storage.close_console_session": "api: the end of a console session",
    "storage.create_api_token": "api: an API token's hash",
    "storage.user_by_token": "api: when an API token was last used, at most once a minute",
    "storage.revoke_api_token": "api: the end of an API token",
    "storage.audit": "api: one line of the audit log",
    "storage.create_fleet": "api: a Fleet",
    "storage.update_fleet": "api: a Fleet's settings or state",
    "storage.delete_fleet": "api: the end of a Fleet",
    "storage.add_series": "api: a hardware series, or more cards of one",
    "storage.remove_series": "api: the end of a hardware series, or of one of its cards",
    "storage.mint_join_token": "api: a Join Token's hash",
    "storage.revoke_join_token": "api: the end of a Join Token",
    "storage.join": "api: a Node, its credential's hash and the use of its Join Token",
    "storage.set_node_state": "api: what an operator wants of a Node",
    "storage.accept_epoch": "api: an operator's acceptance of a Node's hold",
    "storage.set_card_cordon": "api: an operator's cordon of one card, or its end",
    "storage.accept_cards": "api: an operator's acceptance of a Node's cards as they are now",
    "storage.stop_stranger": "api: an operator's stop of a stranger",
    "storage.delete_node": "api: the end of a Node, its credentials, session and holds",
    "storage.submit": "api: a queued job",
    "storage.request_stop": "api: an accepted stop, with its withdrawals and Stop commands",
    "storage.retry": "api: a failed job, queued again",
    "storage.declare_lost": "api: an operator's word that a member has ended, and the release of its holds",
    "storage.publish_identity": "api: a TLS identity, the first one for all replicas",
    "storage.register_gateway": "gateway: its address and lease",
    "storage.renew_gateway": "gateway: a longer lease",
    "storage.close_gateway": "gateway: the end of its sessions and lease",
    "storage.open_session": "gateway: a Node's raised session epoch",
    "storage.close_session": "gateway: the end of a Node's session",
    "storage.record_inventory": "gateway: an inventory, its budgets, cards and cordons",
    "storage.inventory_stale": "gateway: that an inventory is no longer fresh",
    "storage.set_machine_drain": "gateway: that a machine asks for no more work, or for work again",
    "storage.note_clock": "gateway: how far a Node's clock is off",
    "storage.observe": "gateway: an observation of a member; at its end the release of its holds",
    "storage.doubt_journal": "gateway: that a report has put a Node's journal in doubt",
    "storage.reconcile": "gateway: what a complete report lacks",
    "storage.mark_sent": "gateway: that a command is about to be sent",
    "storage.answer_command": "gateway: a Node's answer to a command",
    "storage.place": "worker: an attempt, its plans and its holds",
    "storage.note_waiting": "worker: why a job waits",
    "storage.claim_attempts": "worker: claims with a raised epoch",
    "storage.renew_claims": "worker: longer leases of claims",
    "storage.advance": "worker: one step of a launch with its commands",
    "storage.look_around": "worker: what it sees of the Nodes, the mass-failure brake, and the end of storage cordons",
    "storage.forget_ended": "worker: Forget commands for members long ended",
    "node.journal.create": "node: a new, empty journal with its id",
    "node.journal.upgrade": "node: an older version's journal, made one of the present version",
    "node.journal.epoch": "node: a Welcome's session epoch",
    "node.journal.hold": "node: that the control plane went back, and its commands are held",
    "node.journal.answer": "node: a refused command's answer",
    "node.journal.preparing": "node: an accepted Prepare with its plan",
    "node.journal.prepared": "node: that image and directories are ready",
    "node.journal.creating": "node: an accepted Commit; a create may follow",
    "node.journal.starting": "node: a container's id; its one start may follow",
    "node.journal.running": "node: that the container was started or seen running",
    "node.journal.stopping": "node: an accepted stop of a member that may have started",
    "node.journal.withdrawn": "node: an accepted stop of a member that was not started",
    "node.journal.terminated": "node: the evidence of an end",
    "node.journal.aborted": "node: the tombstone of a member that never ran",
    "node.journal.cleaned": "node: that container, plan and reservation are gone",
    "node.journal.acknowledged": "node: that the control plane has stored a report",
    "node.journal.forgotten": "node: an accepted Forget",
    "node.journal.gone": "node: the end of a forgotten record",
    "node.engine.pull": "node: an image in the container runtime",
    "node.engine.create": "node: a container (or a fence) in the container runtime, not started",
    "node.engine.start": "node: the one start of a member's container",
    "node.engine.signal": "node: a signal to a container",
    "node.engine.remove": "node: the end of a container",
    "node.plan.write": "node: a member's plan as its container will see it",
    "node.plan.delete": "node: the end of a member's plan directory",
    "node.storage.mkdir": "node: a member's output directory below the storage root",
    "node.logs.append": "node: captured output",
    "node.logs.finish": "node: that a member's log is complete",
    "node.logs.archive": "node: a member's log, archived below the storage root",
    "node.logs.delete": "node: the end of a member's log",
    "node.cards.write": "node: which cards its indexes meant, and what is wrong with which",
    "node.drain.wish": "node: that its machine asks for no more work, or for work again",
    "node.drain.heard": "node: what the control plane has answered to that",
    "node.identity.write": "node: the Node's identity and credential",
    "node.join.write": "node: the join key and the ordinal of the next try, before it is sent",
}

_hook: FaultHook | None = None


def install_fault_hook(hook: FaultHook | None) -> None:
    """Install (or with ``None`` remove) the process-wide hook. Only app/ and tests call this."""
    global _hook
    _hook = hook


class _Passage:
    """A class of its own: on the way to every durable write, a generator would cost more than the check."""

    __slots__ = ("_hook", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._hook = _hook

    def __enter__(self) -> None:
        if self._hook is not None:
            self._hook(self._name, "before")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._hook is not None and kind is None:
            self._hook(self._name, "after")


def fault_point(name: str) -> _Passage:
    """Bracket one durable write or external effect. An exception inside the block skips the ``after`` moment."""
    return _Passage(name)
