"""All routes of the process, in one table; ``api_routes`` are those of the OpenAPI document."""

from __future__ import annotations

from .console import router as console
from .console_admin import router as console_admin
from .routes_accounts import router as accounts
from .routes_audit import router as audit
from .routes_events import router as events
from .routes_fleets import router as fleets
from .routes_hardware import router as hardware
from .routes_jobs import router as jobs
from .routes_nodes import router as nodes
from .routes_projects import router as projects
from .routes_system import router as system
from .routes_users import router as users
from .routing import Route

ROUTERS = (system, accounts, users, projects, audit, fleets, hardware, nodes, jobs, events, console, console_admin)
ROUTES: list[Route] = [route for one in ROUTERS for route in one.routes]
API_ROUTES: list[Route] = [route for route in ROUTES if route.page is None]
