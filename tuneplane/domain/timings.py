"""Every duration of the protocol, in seconds, scaled by one value: production 1.0, a real test run 0.05."""

from __future__ import annotations

from attrs import asdict, field, frozen, validators


@frozen(kw_only=True)
class Timings:
    """Protocol durations. ``scaled`` multiplies all of them, so relations between them always hold."""

    heartbeat: float = field(default=7.0, validator=validators.gt(0))  # P-16
    session_idle: float = 20.0  # P-16: two heartbeats may be lost
    reconnect_first: float = 0.5
    reconnect_most: float = 30.0  # L-B15: capped back-off
    inventory_confirm: float = 15.0  # a third of inventory_fresh: two may be lost
    inventory_fresh: float = 45.0  # R-PLC-04
    quiet_train: float = 300.0  # R-LIV-01: silence after which a Node counts as gone for training (and eval)
    quiet_serve: float = 45.0  # R-LIV-01: its revisions are not Ready
    quiet_env: float = 45.0  # R-LIV-01: it is no candidate for environments
    storage_steady: float = 30.0  # R-LIV-03: two looks at inventory_confirm; a mount that flaps faster does not flap placement
    gateway_lease: float = 15.0
    gateway_renew: float = 5.0  # a third of the lease
    claim_lease: float = 15.0
    claim_renew: float = 5.0
    poll: float = 2.0  # NOTIFY is only a poke; polling finds what a lost poke hid
    prepare_deadline: float = 600.0  # R-LCH-10: members that cannot prepare by then abort all
    hold: float = 900.0  # P-08: an uncommitted reservation expires by itself; > prepare_deadline + commit_margin
    commit_margin: float = 10.0  # P-08: no commit is decided this close to expiry of a hold
    commit_deadline: float = 120.0  # P-10: a committed member that does not run by then stops the gang
    judging_grace: float = 60.0  # L-B8, L-B12: reconnect_most + gateway_lease + two beats; nobody is judged within it
    earmark_after: float = 300.0  # R-PLC-06: small jobs go first for so long; then machines are kept free for who waits
    retry_first: float = 10.0  # between an attempt's end and the next one; it doubles
    retry_most: float = 600.0  # as long as a registry or a mount takes to be mended by a person
    engine_call: float = 60.0  # one call to the container engine
    forget_after: float = 7 * 86400.0  # logs and tombstones stay a week on the Node
    shutdown_grace: float = 5.0

    def scaled(self, factor: float) -> Timings:
        """All durations times ``factor`` (> 0)."""
        return Timings(**{name: value * factor for name, value in asdict(self).items()})


PRODUCTION = Timings()
