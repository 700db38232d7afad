"""The first administrator: made at the first start of all, printed once, kept in ``admin.json`` (0600) (R-ADM-01).

The file is written before the account: a crash in between leaves secrets without an account, which the next start
uses, and never an account that nobody can enter.
"""

from __future__ import annotations

import json
from pathlib import Path

import structlog

from tuneplane.control.api import Accounts, FirstAdministrator

from .client import write_private
from .data_dir import StartRefused

log = structlog.get_logger(__name__)

FILE = "admin.json"


async def ensure_first_administrator(accounts: Accounts, data_dir: Path) -> FirstAdministrator | None:
    """Create the account when the console has none; the secrets when this call did, else None."""
    fresh = await accounts.prepare_first_administrator()
    if fresh is None:
        return None
    file = data_dir / FILE
    first = _read(file) or fresh
    secrets = {"username": first.username, "password": first.password, "token": first.token}
    write_private(file, json.dumps(secrets, indent=1) + "\n")
    if not await accounts.create_first_administrator(first):
        file.unlink()  # another replica was faster: its secrets count, and these open nothing
        return None
    log.info("created the first administrator", username=first.username, file=str(file))
    return first


def _read(file: Path) -> FirstAdministrator | None:
    try:
        return FirstAdministrator(**json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StartRefused(f"cannot read {file}, which a first start left behind: {error}") from error
