"""How the fault points of Fleets and of the hardware registry are reached: an administrator's acts, then a launch."""

from __future__ import annotations

from tests.support.system import FLEET

from .rig import Rig, Strike
from .scenarios import refused, then_launch


def create_fleet(rig: Rig, strike: Strike) -> None:
    name = rig.fresh_name("fleet-")
    rig.strike(strike)
    rig.ask_gone(lambda: rig.system.client.post("/api/fleets", {"id": name, "kind": "node", "capabilities": ["train"]}))
    assert rig.ask(lambda: rig.system.client.get(f"/api/fleets/{name}"))["kind"] == "node"
    then_launch(rig, strike)


def update_fleet(rig: Rig, strike: Strike) -> None:
    rig.strike(strike)
    rig.ask(lambda: rig.system.client.patch(f"/api/fleets/{FLEET}", {"capabilities": ["train", "eval"]}))
    assert rig.ask(lambda: rig.system.client.get(f"/api/fleets/{FLEET}"))["capabilities"] == ["train", "eval"]
    then_launch(rig, strike)


def add_series(rig: Rig, strike: Strike) -> None:
    """Adding the same cards again changes nothing, so a lost answer is simply repeated."""
    name = rig.fresh_name("series-")
    rig.strike(strike)
    rig.ask(lambda: rig.system.client.post("/api/hardware", {"series": name, "card_names": [f"card of {name}"]}))
    assert _series(rig, name) == [f"card of {name}"]
    then_launch(rig, strike)


def remove_series(rig: Rig, strike: Strike) -> None:
    name = rig.fresh_name("series-")
    rig.ask(lambda: rig.system.client.post("/api/hardware", {"series": name, "card_names": [f"card of {name}"]}))
    rig.strike(strike)
    rig.ask_gone(lambda: rig.system.client.delete(f"/api/hardware/{name}"))
    assert _series(rig, name) is None
    then_launch(rig, strike)


def _series(rig: Rig, name: str) -> list[str] | None:
    items = rig.ask(lambda: rig.system.client.list_all("/api/hardware"))
    return next((list(item["card_names"]) for item in items if item["series"] == name), None)


def delete_fleet(rig: Rig, strike: Strike) -> None:
    name = rig.fresh_name("fleet-")
    rig.ask(lambda: rig.system.client.post("/api/fleets", {"id": name, "kind": "node", "capabilities": ["train"]}))
    rig.strike(strike)
    rig.ask_gone(lambda: rig.system.client.delete(f"/api/fleets/{name}"))
    refused(rig, lambda: rig.system.client.get(f"/api/fleets/{name}"), 404)
    then_launch(rig, strike)
