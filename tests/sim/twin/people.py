"""Fleets, TLS identities and Join Tokens of the twin."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.fleets import Capability, Fleet, FleetKind, FleetState, Visibility
from tuneplane.domain.ids import FleetId, NodeId, TokenId, UserName
from tuneplane.domain.jobs import EncryptedIdentity, JoinRequest, JoinToken, Page, User
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Topic
from tuneplane.domain.visibility import may_see
from tuneplane.storage.fleets import refuse_kept, what_changed

from .base import Client, audit, page_of, poke
from .nodes import view, write_inventory
from .rows import Book, CredentialRow, NodeRow, TokenRow


class People(Client):
    """FleetStore, IdentityStore and EnrolmentStore (domain/ports.py)."""

    async def load_identity(self, name: str) -> EncryptedIdentity | None:
        return await self.read("load_identity", lambda book: book.identities.get(name))

    async def publish_identity(self, identity: EncryptedIdentity) -> EncryptedIdentity:
        return await self.write(
            "publish_identity", lambda book: book.identities.get(identity.name) or book.identities.put(identity.name, identity)
        )

    async def create_fleet(self, fleet: Fleet, *, by: UserName | None = None) -> None:
        await self.write("create_fleet", _create_fleet, fleet, by)

    async def get_fleet(self, fleet: FleetId) -> Fleet | None:
        return await self.read("get_fleet", lambda book: book.fleets.get(fleet))

    async def list_fleets(self, page: Page, *, seen_by: User | None = None) -> tuple[list[Fleet], str | None]:
        def unit(book: Book) -> tuple[list[Fleet], str | None]:
            seen = [fleet for fleet in book.fleets if seen_by is None or may_see(seen_by, fleet)]
            return page_of(seen, page, lambda fleet: (fleet.created_at, fleet.id))

        return await self.read("list_fleets", unit)

    async def update_fleet(
        self,
        fleet: FleetId,
        *,
        capabilities: tuple[Capability, ...] | None,
        visibility: Visibility | None,
        project: str | None,
        state: FleetState | None,
        config: dict[str, str] | None,
        by: UserName | None = None,
        now: datetime | None = None,
    ) -> Fleet:
        given = {"capabilities": capabilities, "visibility": visibility, "project": project, "state": state, "config": config}
        given = {name: value for name, value in given.items() if value is not None}
        return await self.write("update_fleet", _update_fleet, fleet, given, by, now)

    async def delete_fleet(self, fleet: FleetId, *, by: UserName | None = None, now: datetime | None = None) -> None:
        await self.write("delete_fleet", _delete_fleet, fleet, by, now)

    async def mint_join_token(self, token: JoinToken, secret_hash: str) -> None:
        await self.write("mint_join_token", _mint, token, secret_hash)

    async def list_join_tokens(self, fleet: FleetId) -> list[JoinToken]:
        return await self.read("list_join_tokens", _join_tokens, fleet)

    async def revoke_join_token(self, fleet: FleetId, token: TokenId, now: datetime, *, by: UserName | None = None) -> bool:
        return await self.write("revoke_join_token", _revoke_join_token, fleet, token, now, by)

    async def join(
        self,
        fleet: FleetId,
        request: JoinRequest,
        *,
        node: NodeId,
        token_hash: str,
        join_key_hash: str,
        credential_hash: str,
        credential_expires_at: datetime,
        now: datetime,
    ) -> Node:
        credential = (credential_hash, credential_expires_at)
        return await self.write("join", _join, fleet, request, node, token_hash, join_key_hash, credential, now)

    async def nodes_at_address(self, fleet: FleetId, address: str, besides: NodeId) -> list[NodeId]:
        return await self.read("nodes_at_address", _nodes_at, fleet, address, besides, self.database.clock())


# ---------------------------------------------------------------- Fleets


def _create_fleet(book: Book, fleet: Fleet, by: UserName | None) -> None:
    if fleet.id in book.fleets:
        raise Refused("exists", f"there is a Fleet named {fleet.id!r} already", field="id")
    book.fleets.put(fleet.id, fleet)
    audit(book, by, "fleet.create", fleet.id, fleet.created_at, fleet.kind.value)
    poke(book, Topic.CONSOLE)


def _update_fleet(book: Book, fleet: FleetId, given: dict[str, object], by: UserName | None, now: datetime | None) -> Fleet:
    found = book.fleets.get(fleet)
    if found is None:
        raise NotFound("Fleet", fleet)
    changed = evolve(found, **given)  # type: ignore[arg-type]
    if changed.visibility is Visibility.PUBLIC:
        changed = evolve(changed, project=None)
    audit(book, by, "fleet.update", fleet, now or found.created_at, what_changed(given))
    poke(book, Topic.JOBS, Topic.ACCOUNTS, Topic.CONSOLE)
    return book.fleets.put(fleet, changed)


def _delete_fleet(book: Book, fleet: FleetId, by: UserName | None, now: datetime | None) -> None:
    found = book.fleets.get(fleet)
    if found is None:
        raise NotFound("Fleet", fleet)
    nodes = sorted(node.id for node in book.nodes if _lives_in(node, fleet))
    jobs = sorted(job.id for job in book.jobs if job.fleet == fleet and job.ended_at is None)
    refuse_kept(fleet, {"node": list(nodes), "job": list(jobs)})
    book.fleets.drop(fleet)
    audit(book, by, "fleet.delete", fleet, now or found.created_at)
    for token in [token for token in book.tokens if token.token.fleet == fleet]:
        book.tokens.drop(token.token.id)
    poke(book, Topic.JOBS, Topic.CONSOLE)


def _lives_in(node: NodeRow, fleet: FleetId) -> bool:
    return node.fleet == fleet and node.removed_at is None


# ---------------------------------------------------------------- joining


def _mint(book: Book, token: JoinToken, secret_hash: str) -> None:
    if token.fleet not in book.fleets:
        raise NotFound("Fleet", token.fleet)
    if token.id not in book.tokens:
        book.tokens.put(token.id, TokenRow(token=token, secret_hash=secret_hash))
        audit(book, token.created_by, "join-token.create", token.id, token.created_at, token.fleet)


def _join_tokens(book: Book, fleet: FleetId) -> list[JoinToken]:
    found = [row.token for row in book.tokens if row.token.fleet == fleet]
    return sorted(found, key=lambda token: (token.created_at, token.id), reverse=True)


def _revoke_join_token(book: Book, fleet: FleetId, token: TokenId, now: datetime, by: UserName | None) -> bool:
    row = book.tokens.get(token)
    if row is None or row.token.fleet != fleet:
        return False
    book.tokens.put(token, evolve(row, token=evolve(row.token, revoked_at=row.token.revoked_at or now)))
    audit(book, by, "join-token.revoke", token, now, fleet)
    return True


def _join(
    book: Book,
    fleet: FleetId,
    request: JoinRequest,
    node: NodeId,
    token_hash: str,
    join_key_hash: str,
    credential: tuple[str, datetime],
    now: datetime,
) -> Node:
    row = next((row for row in book.tokens if row.secret_hash == token_hash and row.token.fleet == fleet), None)
    row = _check_token(book, row, fleet, join_key_hash, now)
    if row.token.used_by is None:
        _enrol(book, fleet, request, node, row, join_key_hash, now)
    else:
        node = row.token.used_by
        _join_again(book, request, node, row, now)
    book.credentials.put(credential[0], CredentialRow(node=node, expires_at=credential[1]))
    write_inventory(book, node, request.inventory, now)
    audit(book, row.token.created_by, "node.join", node, now, f"{fleet} at {request.address}")
    poke(book, Topic.CONSOLE)
    return view(book, node, now)


def _check_token(book: Book, row: TokenRow | None, fleet: FleetId, join_key_hash: str, now: datetime) -> TokenRow:
    if row is None:
        raise Refused("token-unknown", f"this is no Join Token of Fleet {fleet}")
    if book.fleets[fleet].kind is not FleetKind.NODE:
        raise Refused("not-a-node-fleet", f"Fleet {fleet} enrols no machines")
    if row.token.revoked_at is not None:
        raise Refused("token-revoked", "the Join Token was revoked")
    if row.token.used_by is not None and row.join_key_hash != join_key_hash:
        raise Refused("token-used", "the Join Token was used")
    if row.token.expires_at <= now:
        raise Refused("token-expired", "the Join Token expired")
    return row


def _enrol(book: Book, fleet: FleetId, request: JoinRequest, node: NodeId, row: TokenRow, join_key_hash: str, now: datetime) -> None:
    made = NodeRow(id=node, fleet=fleet, address=request.address, created_at=now, enrolled_by=row.token.created_by)
    book.nodes.put(node, made)
    used = evolve(row.token, used_at=now, used_by=node)
    book.tokens.put(row.token.id, evolve(row, token=used, join_key_hash=join_key_hash, try_ordinal=request.try_))


def _join_again(book: Book, request: JoinRequest, node: NodeId, row: TokenRow, now: datetime) -> None:
    if request.try_ <= row.try_ordinal:
        raise Refused("stale-try", f"join attempt {request.try_} is older than {row.try_ordinal}")
    found = book.nodes[node]
    if found.removed_at is not None or node in book.sessions:
        raise Refused("token-used", f"Node {node} has connected since")
    for hashed, credential in list(book.credentials.rows.items()):
        if credential.node == node and credential.revoked_at is None:
            book.credentials.put(hashed, evolve(credential, revoked_at=now))
    book.nodes.put(node, evolve(found, address=request.address))
    book.tokens.put(row.token.id, evolve(row, try_ordinal=request.try_))


def _may_name(book: Book, joined: FleetId, other: FleetId) -> bool:
    """R-FLT-08: a joining machine hears of Nodes of its own Fleet, of public ones and of its project's."""
    here, there = book.fleets[joined], book.fleets[other]
    return joined == other or there.visibility is Visibility.PUBLIC or (there.project is not None and there.project == here.project)


def _nodes_at(book: Book, fleet: FleetId, address: str, besides: NodeId, now: datetime) -> list[NodeId]:
    found = []
    for node in book.nodes:
        session = book.sessions.get(node.id)
        gateway = book.gateways.get(session.gateway) if session is not None and session.closed_at is None else None
        here = (
            node.removed_at is None
            and _may_name(book, fleet, node.fleet)
            and node.address.lower() == address.lower()
            and node.id != besides
        )
        if here and gateway is not None and gateway.lease_until > now:
            found.append(node.id)
    return sorted(found)
