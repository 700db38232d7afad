"""How the fault points of cards are reached: a machine whose cards a file declares, swapped while a job runs on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuneplane.domain import codec
from tuneplane.domain.inventory import Gpu
from tuneplane.domain.node_ports import Cards

from .rig import Rig, Strike
from .scenarios import release, start, then_launch


def cordon_card(rig: Rig, strike: Strike) -> None:
    """L-D13: the card is one that the Node had once: nothing is granted, so the launch after it needs none."""
    [node] = rig.ask(rig.system.nodes)
    path = f"/api/nodes/{node['id']}"
    card = rig.fresh_name("GPU-")
    rig.sql(f"INSERT INTO gpu_grant (node_id, gpu_uuid, granted) VALUES ('{node['id']}', '{card}', false)")
    rig.strike(strike)
    for cordoned in (True, False):
        rig.ask(lambda on=cordoned: rig.system.client.patch(f"{path}/cards/{card}", {"cordoned": on}))  # type: ignore[misc]
        seen = next(one for one in rig.ask(lambda: rig.system.client.get(path))["cards"] if one["uuid"] == card)
        assert [cordon["owner"] for cordon in seen["cordons"]] == ["operator"] * cordoned
    then_launch(rig, strike)


def swap_cards(rig: Rig, strike: Strike) -> None:
    """L-D1: two cards are bound, they change places, and an operator accepts it. The job that runs meanwhile does not notice."""
    job, witness = start(rig)
    [node] = rig.ask(rig.system.nodes)
    path = f"/api/nodes/{node['id']}"
    with declared_cards(rig) as declare:
        declare("GPU-a", "GPU-b")
        rig.strike(strike)
        rig.bring_up("node")
        _wait_cards(rig, path, [(0, "GPU-a"), (1, "GPU-b")], cordoned=False)
        declare("GPU-b", "GPU-a")
        reason = _wait_cards(rig, path, [(0, "GPU-a"), (1, "GPU-b")], cordoned=True)
        change = reason.split("change ")[1].split(")")[0]
        rig.ask_gone(lambda: rig.system.client.post(f"{path}/accept-cards", {"change": change}))
        _wait_cards(rig, path, [(0, "GPU-b"), (1, "GPU-a")], cordoned=False)
        rig.take_down("node")
    rig.bring_up("node")
    rig.wait_ready()
    release(rig, strike, job, witness)


@contextmanager
def declared_cards(rig: Rig) -> Iterator[Any]:
    """Take the daemon down and forget all cards; what the block declares is what the next daemon finds, until its end."""
    process = rig.system.processes["node"]
    before, file = dict(process.env), rig.system.directory / "cards.json"
    rig.take_down("node")
    _forget(rig, Path(before["TUNEPLANE_NODE_STATE_DIR"]))
    process.env.update({"TUNEPLANE_NODE_GPU_IDS": "0,1", "TUNEPLANE_NODE_CARDS_FILE": str(file)})

    def declare(*uuids: str) -> None:
        gpus = tuple(Gpu(index=at, uuid=uuid, name="H100", memory_bytes=1) for at, uuid in enumerate(uuids))
        partial = file.with_name("cards.json.new")
        partial.write_bytes(codec.spell(Cards(gpus=gpus)))
        os.replace(partial, file)

    try:
        yield declare
    finally:
        process.env.clear()
        process.env.update(before)


def _forget(rig: Rig, state_dir: Path) -> None:
    (state_dir / "cards.json").unlink(missing_ok=True)
    rig.sql("DELETE FROM card_cordon")
    rig.sql("DELETE FROM gpu_grant")
    rig.sql("UPDATE node SET accepted_cards = ''")


def _wait_cards(rig: Rig, path: str, bound: list[tuple[int, str]], *, cordoned: bool) -> str:
    """Until the indexes mean these cards on both sides; the reason of the Node's own cordon for its cards."""

    def look() -> tuple[list[str] | None, object]:
        seen = rig.ask(lambda: rig.system.client.get(path))
        cards = [(card["index"], card["uuid"]) for card in seen["cards"]]
        remembered = [(one["index"], one["uuid"]) for one in seen["inventory"]["card_bindings"]]
        reasons = [one["reason"] for one in seen["scheduling"]["cordons"] if one["owner"] == "cards"]
        same = (cards, remembered, bool(reasons)) == (bound, bound, cordoned)
        return ([*reasons, ""] if same else None), (cards, remembered, reasons)

    return rig.wait(f"the cards to be {bound}", look)[0]
