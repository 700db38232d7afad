"""TLS identities: the first one published counts for all replicas (R-TLS-01, R-TLS-02)."""

from __future__ import annotations

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.jobs import EncryptedIdentity

from .database import Aggregate

LOCK = 0x7475_6E65_0002  # "tune", 2: identities


class Identities(Aggregate):
    """IdentityStore (domain/ports.py)."""

    async def load_identity(self, name: str) -> EncryptedIdentity | None:
        row = await self._db.fetchrow("SELECT * FROM tls_identity WHERE name = $1", name)
        return _identity(row) if row is not None else None

    async def publish_identity(self, identity: EncryptedIdentity) -> EncryptedIdentity:
        return await self._db.write("publish_identity", _publish, identity)


async def _publish(connection: Connection, identity: EncryptedIdentity) -> EncryptedIdentity:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
    sql = (
        "INSERT INTO tls_identity (name, certificate_pem, key_ciphertext, version, key_id) VALUES ($1, $2, $3, $4, $5)"
        " ON CONFLICT (name) DO NOTHING"
    )
    await connection.execute(sql, identity.name, identity.certificate_pem, identity.key_ciphertext, identity.version, identity.key_id)
    return _identity(await connection.fetchrow("SELECT * FROM tls_identity WHERE name = $1", identity.name))


def _identity(row: Row) -> EncryptedIdentity:
    return EncryptedIdentity(
        name=row["name"],
        certificate_pem=row["certificate_pem"],
        key_ciphertext=row["key_ciphertext"],
        version=row["version"],
        key_id=row["key_id"],
    )
