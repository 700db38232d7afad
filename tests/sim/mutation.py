"""What a mutation is: see ``mutants``."""

from __future__ import annotations

from attrs import field, frozen

from .fate import Focus

TABLE = "tuneplane/domain/member_table.py"
MEMBER = "tuneplane/domain/node_member.py"
LAUNCH = "tuneplane/domain/launch_table.py"
EFFECTS = "tuneplane/nodeside/effects.py"
DRIVER = "tuneplane/nodeside/driver.py"
JOURNAL = "tuneplane/nodeside/journal.py"
SESSION = "tuneplane/control/session.py"
SQL = "tuneplane/storage/"
TWIN = "tests/sim/twin/"


@frozen
class Edit:
    path: str  # a file, or a directory: whichever of its files has the text
    old: str  # occurs exactly once
    new: str


@frozen(kw_only=True)
class Mutation:
    name: str
    rule: str
    why: str  # what is lost with the rule
    edits: tuple[Edit, ...]
    focus: Focus = field(factory=Focus)
