"""A session on a gRPC call: lanes, heartbeats, idle deadline, log credit. What control and nodeside see of the wire.

:func:`serve_gateway` with a :class:`Door` on one side, :func:`run_node_session` on the other. Both give a live
:class:`Link`; frames in and out are the values of ``domain.frames``.
"""

from .base import Link, LinkClosed, LinkFull
from .gateway import Door, GatewayLink, serve_gateway
from .node import NodeLink, SessionEnded, run_node_session

__all__ = [
    "Door",
    "GatewayLink",
    "Link",
    "LinkClosed",
    "LinkFull",
    "NodeLink",
    "SessionEnded",
    "run_node_session",
    "serve_gateway",
]
