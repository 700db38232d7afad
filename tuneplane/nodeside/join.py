"""``tuneplane-node join``: enrol this machine once, over verified HTTPS, surviving lost answers (R-ENR-02, R-ENR-14).

The join key and the ordinal of the try are on the disk before the request leaves: a repeat after a lost answer gets the
same Node again, and a late first request cannot undo a second one (P-14).
"""

from __future__ import annotations

import json
import logging
import secrets
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import trio
from attrs import evolve, field, frozen

from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput, Refused
from tuneplane.domain.frames import WIRE_PROTOCOL
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.secrets import secret_hash

from .address import find_address
from .files import write_durably
from .identity import Identity, is_enrolled, save_identity
from .locks import hold_state_dir
from .machine import node_version

log = logging.getLogger(__name__)

PENDING_NAME = "join.json"
CALL_SECONDS = 30.0
RETRY_WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0)  # a console being restarted; after that a person should look
CLOCK_WARN_SECONDS = 60.0  # L-A1
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class JoinFailed(Refused):
    """The machine is not enrolled; the text says why and what to do."""


@frozen(kw_only=True)
class JoinOrder:
    """What an operator asks for. ``trust_pem`` is added to the system's roots (R-TLS-08)."""

    server: str
    fleet: FleetId
    token: str = field(repr=False)
    address: str = ""
    trust_pem: str | None = field(default=None, repr=False)
    force: bool = False


@frozen(kw_only=True)
class Joined:
    """The new Node, and what its operator should know."""

    identity: Identity
    warnings: tuple[str, ...] = ()


@frozen(kw_only=True)
class _Pending:
    """A join that has begun: kept until it has succeeded, so that a repeat is the same join."""

    server: str
    fleet: FleetId
    token_hash: str
    join_key: str = field(repr=False)
    try_: int = 0


async def join_fleet(order: JoinOrder, state_dir: Path, inventory: Inventory) -> Joined:
    """Enrol and save the identity. Raises JoinFailed, InvalidInput or Refused (a daemon holds the directory, R-ENR-10).
    Then nothing was saved but the join key.

    Cancelled at any point it can be called again with the same order.
    """
    url = _console_url(order.server)
    with hold_state_dir(state_dir):  # two joins, or a join beside a daemon, would mix their identities
        return await _join_held(order, state_dir, inventory, url)


async def _join_held(order: JoinOrder, state_dir: Path, inventory: Inventory, url: str) -> Joined:
    if is_enrolled(state_dir) and not order.force:
        raise JoinFailed("already-enrolled", f"this machine is already enrolled ({state_dir}); --force makes a new Node of it")
    tls = enrolment_context(order.trust_pem)
    address = order.address or await find_address(urlsplit(url).hostname or "")
    pending = _load_pending(state_dir, order, url)
    async with httpx.AsyncClient(verify=tls, timeout=CALL_SECONDS, follow_redirects=False) as client:
        answer, warnings = await _ask_until_answered(client, order, url, state_dir, pending, address, inventory)
    identity = _read_answer(answer, order.fleet, url, address)
    save_identity(state_dir, identity)
    (state_dir / PENDING_NAME).unlink(missing_ok=True)
    unready = (f"this Node will not be ready: {problem}" for problem in inventory.problems)
    return Joined(identity=identity, warnings=(*warnings, *map(str, answer.get("warnings", ())), *unready))


def _console_url(server: str) -> str:
    parts = urlsplit(server)
    if parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise InvalidInput("--server", "must be an https:// address such as https://console.example; enrolment is never unencrypted")
    return server.rstrip("/")


def enrolment_context(trust_pem: str | None) -> ssl.SSLContext:
    """Verifies the console against the system's roots and ``trust_pem``. InvalidInput for a bundle with a key (R-TLS-09)."""
    context = ssl.create_default_context()
    if trust_pem is not None:
        if "PRIVATE KEY" in trust_pem:
            raise InvalidInput("--trust-bundle", "contains a private key; it must hold certificates only")
        try:
            context.load_verify_locations(cadata=trust_pem)
        except ssl.SSLError as error:
            raise InvalidInput("--trust-bundle", f"holds no usable certificate: {error.reason or error}") from error
    return context


def _load_pending(state_dir: Path, order: JoinOrder, url: str) -> _Pending:
    """The join of this very token that has begun before, or a new one."""
    fresh = _Pending(server=url, fleet=order.fleet, token_hash=secret_hash(order.token), join_key=secrets.token_urlsafe(32))
    try:
        known = codec.decode(_Pending, json.loads((state_dir / PENDING_NAME).read_bytes()))
    except (FileNotFoundError, ValueError, InvalidInput):
        return fresh
    same = (known.server, known.fleet, known.token_hash) == (fresh.server, fresh.fleet, fresh.token_hash)
    return known if same else fresh


async def _ask_until_answered(
    client: httpx.AsyncClient, order: JoinOrder, url: str, state_dir: Path, pending: _Pending, address: str, inventory: Inventory
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The console's answer; tries again while it may be a passing trouble, each try persisted first (P-14)."""
    for wait in (*RETRY_WAITS_SECONDS, None):
        pending = evolve(pending, try_=pending.try_ + 1)
        write_durably(state_dir / PENDING_NAME, json.dumps(codec.encode(pending)).encode(), point="node.join.write")
        body = _request_body(order, pending, address, inventory)
        try:
            response = await client.post(f"{url}/api/fleets/{order.fleet}/nodes", json=body)
        except httpx.TransportError as error:
            reason = tls_reason(error)
            if reason:
                raise JoinFailed("tls-failed", f"the console {url} was not trusted: {reason}") from error
            trouble = f"the console {url} does not answer: {error or type(error).__name__}"
        else:
            if response.status_code == 201:
                return response.json(), clock_warning(response.headers.get("date"), datetime.now(UTC))
            if response.status_code not in RETRIED:
                raise _refusal(response)
            trouble = f"the console {url} answered {response.status_code}"
        if wait is None:
            raise JoinFailed("console-unreachable", f"{trouble}; run the same command again when it does")
        log.warning("%s; trying again in %g s", trouble, wait)
        await trio.sleep(wait)
    raise AssertionError("the last wait is None")


def _request_body(order: JoinOrder, pending: _Pending, address: str, inventory: Inventory) -> dict[str, Any]:
    return {
        "token": order.token,
        "join_key": pending.join_key,
        "try": pending.try_,
        "address": address,
        "node_version": node_version(),
        "protocol": WIRE_PROTOCOL,
        "inventory": codec.encode(inventory),
    }


def tls_reason(error: BaseException) -> str:
    """Why a certificate was not accepted, in OpenSSL's words (L-A3); "" when it was something else."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message or str(cause)
        if isinstance(cause, ssl.SSLError):
            return cause.reason or str(cause)
        cause = cause.__cause__ or cause.__context__
    return ""


def clock_warning(date: str | None, now: datetime) -> tuple[str, ...]:
    """Name this machine's clock when it is off (L-A1). The header has whole seconds."""
    try:
        offset = (now - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError):
        return ()
    if abs(offset) < CLOCK_WARN_SECONDS:
        return ()
    return (f"this machine's clock is {offset:+.0f} s against the console's; set it right, or certificates and credentials will fail",)


def _refusal(response: httpx.Response) -> JoinFailed:
    """The problem document's own words."""
    try:
        problem = response.json()
        code, detail = str(problem.get("code") or "refused"), str(problem.get("detail") or problem.get("title") or "")
    except (ValueError, AttributeError):
        code, detail = "refused", response.text[:200]
    extra = clock_warning(response.headers.get("date"), datetime.now(UTC))
    return JoinFailed(code, "; ".join([f"the console refused to enrol this machine: {detail or response.status_code}", *extra]))


def _read_answer(answer: dict[str, Any], fleet: FleetId, url: str, address: str) -> Identity:
    try:
        return Identity(
            node=NodeId(str(answer["id"])),
            fleet=fleet,
            server=url,
            address=address,
            credential=str(answer["credential"]),
            credential_expires_at=codec.decode(datetime, answer["credential_expires_at"]),
            gateway_target=str(answer["gateway_target"]),
            gateway_trust_pem=str(answer.get("gateway_trust_pem") or ""),
        )
    except KeyError as error:
        raise JoinFailed("bad-answer", f"the console's answer lacks {error}; does it run another version?") from error
