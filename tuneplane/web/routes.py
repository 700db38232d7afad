"""All routes of the process, in one table; ``api_routes`` are those of the OpenAPI document."""

from __future__ import annotations

from .console import router as console
from .routes_accounts import router as accounts
from .routes_events import router as events
from .routes_fleets import router as fleets
from .routes_hardware import router as hardware
from .routes_jobs import router as jobs
from .routes_nodes import router as nodes
from .routes_system import router as system
from .routing import Route

ROUTES: list[Route] = [route for one in (system, accounts, fleets, hardware, nodes, jobs, events, console) for route in one.routes]
API_ROUTES: list[Route] = [route for route in ROUTES if route.page is None]
