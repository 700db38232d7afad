"""A hundred submissions at once on eight declared cards, with real containers (L-D10, R-PLC-05).

On request only (``TUNEPLANE_PLAY_CARDS=1``): Podman finds cards nowhere but in /run/cdi, which is the whole machine's. The
same on the simulated runtime, twenty times, is tests/sim/test_many_at_once.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import wait_for
from tests.support.system import WholeSystem, open_system_of_processes
from tuneplane.app.client import ApiClient
from tuneplane.domain import codec
from tuneplane.domain.inventory import Gpu
from tuneplane.domain.node_ports import Cards

ASKED = os.environ.get("TUNEPLANE_PLAY_CARDS") == "1"
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not ASKED, reason="declares cards to every container engine of this machine")]

CDI = Path("/run/cdi")
CARDS = tuple(f"GPU-play-{os.getpid()}-{number}" for number in range(8))
JOBS, SECONDS = 100, 180.0
ONE_CARD = {"resources": {"pools": [{"gpus_per_node": 1, "cpus": 0.1, "memory_gb": 0.064}]}}
SCRIPT = "env | grep PLAY_CARD; exec sleep 1000"  # what the engine has put into the container


@contextmanager
def cards_of_the_engine() -> Iterator[None]:
    """Every card is a variable of its own inside the container that gets it."""
    devices = [{"name": card, "containerEdits": {"env": [f"PLAY_CARD_{number}={card}"]}} for number, card in enumerate(CARDS)]
    file, made = CDI / f"tuneplane-play-{os.getpid()}.json", not CDI.exists()
    CDI.mkdir(exist_ok=True)
    file.write_text(json.dumps({"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": {}}))
    try:
        yield
    finally:
        file.unlink()
        if made:
            CDI.rmdir()


def declare_cards(system: WholeSystem) -> None:
    """The daemon starts again, as on a machine with these cards."""
    system.stop("node")
    file = system.directory / "cards.json"
    file.write_bytes(codec.spell(Cards(gpus=tuple(Gpu(index=n, uuid=card, name="H100", memory_bytes=1) for n, card in enumerate(CARDS)))))
    granted = {"TUNEPLANE_NODE_GPU_IDS": ",".join(map(str, range(len(CARDS)))), "TUNEPLANE_NODE_CARDS_FILE": str(file)}
    system.processes["node"].env.update({**granted, "TUNEPLANE_FAULT_TESTING": "1"})
    system.restart("node")

    def ready() -> tuple[bool | None, object]:
        [node] = system.nodes()
        return (node["ready"]["value"] and node["capacity"]["gpus"] == len(CARDS)) or None, (node["ready"], node["capacity"])

    wait_for("the Node to be ready with eight cards", ready, SECONDS)


def submit(system: WholeSystem, _: int) -> str:
    client = ApiClient(system.credentials)
    try:
        return str(client.post("/api/jobs", system.spec(["sh", "-c", SCRIPT], **ONE_CARD))["id"])
    finally:
        client.close()


def waits_for_a_card(job: dict[str, Any]) -> bool:
    reasons = [(one["code"], one["unit"], one["need"], one["have"]) for one in job["waiting"]["reasons"]]
    return (job["waiting"]["code"], reasons) == ("no-free-capacity", [("insufficient-gpus", "gpus", 1, 0)])


def card_inside(system: WholeSystem, job: dict[str, Any]) -> str:
    """What the job itself has printed."""
    said = wait_for("its first line", lambda: (system.read_log(job["id"]).decode() or None, "nothing")).split()
    assert len(said) == 1, said
    return said[0].partition("=")[2]


def test_each_card_has_one_container_and_the_others_wait_with_true_reasons() -> None:
    with cards_of_the_engine(), open_system_of_processes(workers=2, factor="0.25") as system:
        declare_cards(system)
        system.image()
        with ThreadPoolExecutor(JOBS) as people:
            jobs = list(people.map(lambda number: submit(system, number), range(JOBS)))

        def settled() -> tuple[list[dict[str, Any]] | None, object]:
            seen = [system.job(job) for job in jobs]
            running = [job for job in seen if job["state"] == "running"]
            waiting = [job for job in seen if job["state"] == "queued" and waits_for_a_card(job)]
            return (running if (len(running), len(waiting)) == (len(CARDS), JOBS - len(CARDS)) else None), (len(running), len(waiting))

        running = wait_for("eight to run and the others to wait", settled, SECONDS)
        inside = {card_inside(system, job): job for job in running}
        assert sorted(inside) == sorted(CARDS)
        assert all(job["attempts"][-1]["members"][0]["gpu_uuids"] == [card] for card, job in inside.items())
        assert sum(one["State"] == "running" for one in system.podman.containers()) == len(CARDS)
        assert [(group["cause"], group["jobs"]) for group in system.client.get("/api/waiting")["items"]] == [("insufficient-gpus", 92)]
