"""The application services of the control plane: what the web room may do, and the only module of control it imports.

:class:`ControlApi` is made once by :func:`make_control_api`. Its services check who may do what, validate, write
through the storage ports and leave an audit row; they hold no state of their own, so every API replica answers alike.
Nothing here is long-lived: each call belongs to its caller's task and deadline.
"""

from __future__ import annotations

from attrs import frozen

from tuneplane.domain.ports import Storage
from tuneplane.domain.timings import Timings
from tuneplane.domain.visibility import JobAccess, may_see, may_see_job

from .api_accounts import COMMAND_LINE, Accounts, Credentials, FirstAdministrator, NewToken, TokenDraft, UserDraft, UserPatch
from .api_base import Base, Clock, Entropy
from .api_cards import CardAcceptance, CardPatch, Cards
from .api_fleets import FleetAnswer, FleetDraft, FleetPatch, Fleets, JoinTokenAnswer, NewJoinToken, answer_fleet
from .api_hardware import Hardware, SeriesAnswer, SeriesDraft
from .api_jobs import Jobs, Preview
from .api_logs import (
    ArchiveReader,
    FollowBytes,
    FollowEnded,
    FollowEvent,
    FollowInterrupted,
    FollowWaiting,
    LogBytes,
    LogChoice,
    LogReader,
    Logs,
)
from .api_nodes import EpochAcceptance, GatewayTrust, JoinAnswer, LossDeclaration, NodeAnswer, NodePatch, Nodes, StrangerStop
from .api_projects import AuditLog, ProjectDraft, Projects
from .api_sight import SightAnswer, Sights
from .images import ImageResolver, RegistryResolver

__all__ = [
    "COMMAND_LINE",
    "Accounts",
    "AuditLog",
    "Base",
    "CardAcceptance",
    "CardPatch",
    "Clock",
    "ControlApi",
    "Credentials",
    "Entropy",
    "FirstAdministrator",
    "FleetAnswer",
    "FleetDraft",
    "FleetPatch",
    "Fleets",
    "FollowBytes",
    "FollowEnded",
    "FollowEvent",
    "FollowInterrupted",
    "FollowWaiting",
    "EpochAcceptance",
    "SeriesAnswer",
    "SeriesDraft",
    "GatewayTrust",
    "ImageResolver",
    "JoinAnswer",
    "JoinTokenAnswer",
    "Jobs",
    "LogBytes",
    "LogChoice",
    "LogReader",
    "Logs",
    "LossDeclaration",
    "NewJoinToken",
    "NewToken",
    "NodeAnswer",
    "NodePatch",
    "SightAnswer",
    "StrangerStop",
    "Nodes",
    "Preview",
    "ProjectDraft",
    "Projects",
    "RegistryResolver",
    "TokenDraft",
    "UserDraft",
    "UserPatch",
    "JobAccess",
    "answer_fleet",
    "make_control_api",
    "may_see",
    "may_see_job",
]


@frozen(kw_only=True)
class ControlApi:
    """All services as one object."""

    accounts: Accounts
    projects: Projects
    audit: AuditLog
    fleets: Fleets
    hardware: Hardware
    nodes: Nodes
    cards: Cards
    sights: Sights
    jobs: Jobs
    logs: Logs


def make_control_api(
    *,
    storage: Storage,
    clock: Clock,
    entropy: Entropy,
    public_url: str,
    gateway: GatewayTrust,
    log_reader: LogReader,
    archive: ArchiveReader,
    storage_root: str,
    images: ImageResolver,
    timings: Timings,
) -> ControlApi:
    """Wire the services together. ``public_url`` is ``https://host[:port]`` without a path;
    ``storage_root`` is where Nodes archive logs unless their Fleet names another (R-ENR-11), "" when nowhere."""
    fleets = Fleets(storage=storage, clock=clock, entropy=entropy, public_url=public_url.rstrip("/"))
    jobs = Jobs(storage=storage, clock=clock, entropy=entropy, fleets=fleets, images=images, timings=timings)
    nodes = Nodes(storage=storage, clock=clock, entropy=entropy, fleets=fleets, gateway=gateway, timings=timings)
    return ControlApi(
        accounts=Accounts(storage=storage, clock=clock, entropy=entropy),
        projects=Projects(storage=storage, clock=clock, entropy=entropy),
        audit=AuditLog(storage=storage, clock=clock, entropy=entropy),
        fleets=fleets,
        hardware=Hardware(storage=storage, clock=clock, entropy=entropy),
        nodes=nodes,
        cards=Cards(storage=storage, clock=clock, entropy=entropy, nodes=nodes),
        sights=Sights(storage=storage, clock=clock, entropy=entropy, timings=timings),
        jobs=jobs,
        logs=Logs(jobs=jobs, reader=log_reader, archive=archive, storage_root=storage_root),
    )
