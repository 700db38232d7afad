"""Every fault point: which story reaches it, in which process, and where a launch may be lost by it."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from tuneplane.domain.faultpoint import FAULT_POINTS

from . import account_scenarios, card_scenarios, fleet_scenarios, scenarios
from .rig import Strike
from .scenarios import Scenario

MOMENTS = ("before", "after", "lost")


@frozen
class Reach:
    """``process`` is the one that is struck (default: the owner that the point names); ``nths`` which of its passes."""

    scenario: Scenario
    process: str = ""
    nths: tuple[int, ...] = (1,)
    lost_at: tuple[str, ...] = ()  # moments at which the launch ends as ``lost``: P-03, never repeat an effect


REACH: dict[str, Reach] = {
    # the data directory and the database, before anything runs; a first start writes five files
    "app.write-file": Reach(scenarios.first_start, "first", nths=(1, 2, 3, 4, 5)),
    "control.cache-identity": Reach(scenarios.first_start, "first", nths=(1, 2)),
    "storage.migrate": Reach(scenarios.first_start, "first"),
    "storage.create_user": Reach(scenarios.first_start, "first"),
    "storage.publish_identity": Reach(scenarios.first_start, "first", nths=(1, 2)),
    "storage.embedded_create": Reach(scenarios.embedded, "up"),
    "storage.embedded_start": Reach(scenarios.embedded, "up"),
    # operators and users
    "storage.update_user": Reach(account_scenarios.disable_user),
    "storage.create_project": Reach(account_scenarios.create_project),
    "storage.set_member": Reach(account_scenarios.add_member),
    "storage.open_console_session": Reach(account_scenarios.sign_in),
    "storage.close_console_session": Reach(account_scenarios.sign_out),
    "storage.create_api_token": Reach(scenarios.create_token),
    "storage.user_by_token": Reach(scenarios.use_token),
    "storage.revoke_api_token": Reach(scenarios.revoke_token),
    "storage.audit": Reach(scenarios.refuse_join),
    "storage.create_fleet": Reach(fleet_scenarios.create_fleet),
    "storage.update_fleet": Reach(fleet_scenarios.update_fleet),
    "storage.delete_fleet": Reach(fleet_scenarios.delete_fleet),
    "storage.add_series": Reach(fleet_scenarios.add_series),
    "storage.remove_series": Reach(fleet_scenarios.remove_series),
    "storage.mint_join_token": Reach(scenarios.mint_join_token),
    "storage.revoke_join_token": Reach(scenarios.revoke_join_token),
    "storage.set_node_state": Reach(scenarios.set_node_state),
    "storage.accept_epoch": Reach(scenarios.database_went_back),
    "storage.set_card_cordon": Reach(card_scenarios.cordon_card),
    "storage.accept_cards": Reach(card_scenarios.swap_cards),
    "storage.stop_stranger": Reach(scenarios.stop_stranger),
    "storage.delete_node": Reach(scenarios.delete_node),
    "storage.submit": Reach(scenarios.launch),
    "storage.request_stop": Reach(scenarios.stop),
    "storage.retry": Reach(scenarios.retry),
    "storage.declare_lost": Reach(scenarios.declare_lost),
    # enrolment
    "storage.join": Reach(scenarios.join),
    "node.join.write": Reach(scenarios.join, "join"),
    "node.cards.write": Reach(card_scenarios.swap_cards),  # at first sight; the acceptance is another pass of the same write
    "node.drain.wish": Reach(scenarios.machine_drain, "drain"),
    "node.drain.heard": Reach(scenarios.machine_drain),
    "node.identity.write": Reach(scenarios.join, "join"),
    "node.journal.create": Reach(scenarios.join),
    # the gateway
    "storage.register_gateway": Reach(scenarios.gateway_restarts),
    "storage.renew_gateway": Reach(scenarios.while_running),
    "storage.close_gateway": Reach(scenarios.gateway_restarts),
    "storage.open_session": Reach(scenarios.node_restarts),
    "storage.close_session": Reach(scenarios.node_restarts),
    "storage.record_inventory": Reach(scenarios.node_restarts),
    "storage.inventory_stale": Reach(scenarios.runtime_hangs),
    "storage.set_machine_drain": Reach(scenarios.machine_drain),
    "storage.note_clock": Reach(scenarios.node_restarts),
    "storage.observe": Reach(scenarios.launch, nths=(1, 2, 3)),  # at least preparing or prepared, terminated, cleaned: reports coalesce
    "storage.doubt_journal": Reach(scenarios.journal_reverts),
    "storage.reconcile": Reach(scenarios.node_restarts),
    "storage.mark_sent": Reach(scenarios.launch, nths=(1, 2)),  # Prepare, Commit
    "storage.answer_command": Reach(scenarios.launch, nths=(1, 2)),
    "control.acknowledge": Reach(scenarios.launch, nths=(1, 2)),
    "control.send-command": Reach(scenarios.launch, nths=(1, 2)),
    # the worker
    "storage.place": Reach(scenarios.launch),
    "storage.note_waiting": Reach(scenarios.waiting),
    "storage.claim_attempts": Reach(scenarios.launch),
    "storage.renew_claims": Reach(scenarios.while_running),
    "storage.advance": Reach(scenarios.launch, nths=(1, 2, 3)),  # prepare, commit, then running or the end
    "storage.look_around": Reach(scenarios.while_running),
    "storage.forget_ended": Reach(scenarios.forget),
    # the Node's journal
    "node.journal.upgrade": Reach(scenarios.journal_of_an_older_node),
    "node.journal.epoch": Reach(scenarios.node_restarts),
    "node.journal.hold": Reach(scenarios.database_went_back),
    "node.journal.answer": Reach(scenarios.stop_too_late),
    "node.journal.preparing": Reach(scenarios.launch),
    "node.journal.prepared": Reach(scenarios.launch),
    "node.journal.creating": Reach(scenarios.launch, lost_at=("after",)),
    "node.journal.starting": Reach(scenarios.launch, lost_at=("after", "lost")),
    "node.journal.running": Reach(scenarios.launch),
    "node.journal.stopping": Reach(scenarios.stop),
    "node.journal.withdrawn": Reach(scenarios.stop_unheard),
    "node.journal.terminated": Reach(scenarios.launch),
    "node.journal.aborted": Reach(scenarios.bad_image),
    "node.journal.cleaned": Reach(scenarios.launch),
    "node.journal.acknowledged": Reach(scenarios.launch),
    "node.journal.forgotten": Reach(scenarios.forget),
    "node.journal.gone": Reach(scenarios.forget),
    # the Node's effects
    "node.engine.pull": Reach(scenarios.pull),
    "node.engine.create": Reach(scenarios.launch, lost_at=("before",)),
    "node.engine.start": Reach(scenarios.launch, lost_at=("before",)),
    "node.engine.signal": Reach(scenarios.stop),
    "node.engine.remove": Reach(scenarios.launch),
    "node.plan.write": Reach(scenarios.launch),
    "node.plan.delete": Reach(scenarios.launch),
    "node.storage.mkdir": Reach(scenarios.launch),
    "node.logs.append": Reach(scenarios.launch),
    "node.logs.finish": Reach(scenarios.launch),
    "node.logs.archive": Reach(scenarios.launch),
    "node.logs.delete": Reach(scenarios.forget),
}


def owner(point: str) -> str:
    """The process that the registered sentence names."""
    return FAULT_POINTS[point].partition(": ")[0]


def cases() -> Iterator[tuple[Strike, Scenario]]:
    """All points, passes and moments."""
    for point, reach in REACH.items():
        for nth in reach.nths:
            for moment in MOMENTS:
                process = reach.process or owner(point)
                yield Strike(point, moment, process, nth, moment in reach.lost_at), reach.scenario
