"""Choosing a Fleet, row by row (product page "Choosing a Fleet"; R-PLC-01, R-PLC-02, R-FLT-07, L-L1)."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import attrs
import pytest

from tests.domain.strategies import EPOCH
from tests.domain.test_placement import LAB, gang, machine
from tuneplane.domain import codec
from tuneplane.domain.admission import RULES, UNSEEN, Candidate, Naming, Workload, admission_reasons, choose, fleet_reasons
from tuneplane.domain.errors import Refused
from tuneplane.domain.fleets import Capability, Fleet, FleetKind, FleetState
from tuneplane.domain.ids import FleetId
from tuneplane.domain.jobspec import JobSpec, Pool, Resources
from tuneplane.domain.placement import MustWait, place

GOLDEN = Path(__file__).parents[1] / "golden" / "placement-reasons.json"
C, K = Capability, FleetKind


def fleet(name: str, *capabilities: Capability, kind: FleetKind = K.NODE, state: FleetState = FleetState.ACTIVE) -> Fleet:
    return attrs.evolve(LAB, id=FleetId(name), capabilities=capabilities, kind=kind, state=state)


def chosen(workload: Workload, fleets: list[Fleet], *, named: bool = False) -> str:
    """The name of the Fleet, or the code of the refusal: the same in whatever order the Fleets come."""
    answers = set()
    for order in permutations(fleets):
        try:
            found = choose(workload, [Candidate(one, fleet_reasons(workload, one)) for one in order], named=named)
            answers.add(found.id if found is not None else "")
        except Refused as refused:
            answers.add(refused.code)
    (answer,) = answers
    return answer


TRAIN, SERVE, ENV = fleet("t", C.TRAIN), fleet("s", C.SERVE), fleet("e", C.ENV)
SERVE_TOO, CLOUD = fleet("s2", C.SERVE), fleet("k", C.SERVE, kind=K.KUBERNETES)
BATCH = fleet("b", C.SERVE, kind=K.SLURM)
W = Workload
ROWS = [
    # placed automatically among Fleets that can train
    (W.TRAINING_JOB, [TRAIN, SERVE, ENV], False, "t"),
    (W.TRAINING_JOB, [SERVE, ENV], False, "no-fleet-fits"),
    (W.TRAINING_JOB, [], False, "no-fleet-fits"),
    (W.TRAINING_JOB, [fleet("b", C.TRAIN), fleet("a", C.TRAIN)], False, "a"),
    (W.TRAINING_JOB, [SERVE], True, "fleet-refused"),
    # the same placement, on the same gates
    (W.LIFECYCLE_JOB, [TRAIN, SERVE, ENV], False, "t"),
    (W.LIFECYCLE_JOB, [SERVE], True, "fleet-refused"),
    # named by the submitter; with one serving Fleet the choice is made for him
    (W.MODEL_DEPLOYMENT, [TRAIN, SERVE], False, "s"),
    (W.MODEL_DEPLOYMENT, [SERVE, SERVE_TOO], False, "fleet-unnamed"),
    (W.MODEL_DEPLOYMENT, [SERVE_TOO], True, "s2"),
    (W.MODEL_DEPLOYMENT, [TRAIN], True, "fleet-refused"),
    (W.MODEL_DEPLOYMENT, [TRAIN], False, "no-fleet-fits"),
    (W.MODEL_DEPLOYMENT, [BATCH], False, "b"),
    # one that is draining still serves: the choice is not ours
    (W.MODEL_DEPLOYMENT, [SERVE, fleet("s3", C.SERVE, state=FleetState.DRAINING)], False, "fleet-unnamed"),
    # placed among Fleets that can serve; node and kubernetes
    (W.PLAYGROUND_SESSION, [SERVE, SERVE_TOO, BATCH], False, "s"),
    (W.PLAYGROUND_SESSION, [CLOUD, TRAIN], False, "k"),
    (W.PLAYGROUND_SESSION, [BATCH, TRAIN], False, "no-fleet-fits"),
    # named in its manifest; the Fleet must declare env
    (W.ENVIRONMENT, [ENV], True, "e"),
    (W.ENVIRONMENT, [TRAIN], True, "fleet-refused"),
    (W.ENVIRONMENT, [ENV], False, "fleet-unnamed"),
    # storage: neither
    (W.VOLUME, [TRAIN, SERVE], False, ""),
    (W.DATASET, [], False, ""),
]


@pytest.mark.parametrize(("workload", "fleets", "named", "answer"), ROWS)
def test_choosing_a_fleet(workload: Workload, fleets: list[Fleet], named: bool, answer: str) -> None:
    """R-PLC-01, R-FLT-07."""
    assert chosen(workload, fleets, named=named) == answer


def test_every_workload_has_a_rule_and_a_row() -> None:
    assert set(RULES) == set(Workload) == {row[0] for row in ROWS}
    assert all((rule.capability is None) == (rule.naming is Naming.NONE) for rule in RULES.values())


def test_choosing_prefers_room_to_names() -> None:
    full, empty = Candidate(fleet("a", C.TRAIN), has_room=False), Candidate(fleet("b", C.TRAIN))
    for order in ([full, empty], [empty, full]):
        found = choose(W.TRAINING_JOB, order, named=False)
        assert found is not None
        assert found.id == "b"


@pytest.mark.parametrize("state", [FleetState.DRAINING, FleetState.DISABLED])
def test_a_named_fleet_that_takes_no_work_is_refused_with_its_state(state: FleetState) -> None:
    """R-PLC-02."""
    closed = fleet("t", C.TRAIN, state=state)
    with pytest.raises(Refused, match=f"Fleet t is {state.value}") as refused:
        choose(W.TRAINING_JOB, [Candidate(closed, fleet_reasons(W.TRAINING_JOB, closed))], named=True)
    assert (refused.value.code, refused.value.field) == ("fleet-refused", "spec.fleet")
    assert [one.code for one in refused.value.reasons] == ["fleet-state"]


def test_what_was_not_considered_is_one_sentence() -> None:
    """R-PLC-02: the same whether there are Fleets that the submitter cannot see or not."""
    for fleets in ([], [SERVE]):
        with pytest.raises(Refused) as refused:
            choose(W.TRAINING_JOB, [Candidate(one, fleet_reasons(W.TRAINING_JOB, one)) for one in fleets], named=False)
        assert str(refused.value).endswith(UNSEEN)
        assert not any(letter.isdigit() for letter in UNSEEN)


# ---------------------------------------------------------------- reasons with numbers


def _asks(nodes: int = 1, gpus: int = 0, cpus: float = 1.0, memory_gb: float = 1.0, interface: str | None = None) -> JobSpec:
    made = gang(nodes, interface=interface)
    pool = Pool(nodes=nodes, gpus_per_node=gpus, cpus=cpus, memory_gb=memory_gb)
    return attrs.evolve(made, spec=attrs.evolve(made.spec, resources=Resources(pools=(pool,), network=made.spec.resources.network)))


def _causes() -> dict[str, object]:
    """By what is wrong: at admission per Fleet, and of a job that waits per Node."""
    nodes = [machine(1), machine(2)]
    away = attrs.evolve(nodes[0], connection=attrs.evolve(nodes[0].connection, state="disconnected"))
    busy = [attrs.evolve(one, held_ports=(20000, 20001, 20002, 20003)) for one in nodes]
    admission = {
        "no such capability": admission_reasons(gang(1), SERVE, nodes),
        "draining": admission_reasons(gang(1), fleet("t", C.TRAIN, state=FleetState.DRAINING), nodes),
        "no machines": admission_reasons(gang(2), LAB, []),
        "too few cards, ever": admission_reasons(_asks(gpus=4), LAB, nodes),
        "too few machines, ever": admission_reasons(gang(3), LAB, nodes),
        "no such interface": admission_reasons(gang(2, interface="bond0"), LAB, nodes),
    }
    waiting = {
        "nobody is there": place(gang(1), LAB, [], EPOCH),
        "away": place(gang(1), LAB, [away], EPOCH),
        "cards are taken": place(_asks(gpus=4), LAB, nodes[:1], EPOCH),
        "CPUs are taken": place(_asks(cpus=9.0), LAB, nodes[:1], EPOCH),
        "memory is taken": place(_asks(memory_gb=2000.0), LAB, nodes[:1], EPOCH),
        "ports are taken": place(gang(1), LAB, busy[:1], EPOCH),
        "too few machines are free": place(gang(2), LAB, [nodes[0], busy[1]], EPOCH),
    }
    return {"admission": codec.encode(admission), "waiting": codec.encode(waiting)}


def test_each_cause_has_its_code_and_numbers() -> None:
    """L-L1, R-PLC-02, R-PLC-03: six causes, six codes; "full" and "never" are told apart. Change the file with care: programs read it."""
    told = _causes()
    assert json.loads(GOLDEN.read_text()) == told
    firsts = [answer[0]["code"] for answer in told["admission"].values()]  # type: ignore[attr-defined]
    lasts = [answer["reasons"][-1]["code"] for name, answer in told["waiting"].items() if "few machines" not in name]  # type: ignore[attr-defined]
    assert len(set(lasts)) == 6, lasts
    assert len(set(firsts)) == 6, firsts


def test_reasons_of_amounts_have_numbers() -> None:
    answer = place(_asks(gpus=4), LAB, [machine(1)], EPOCH)
    assert isinstance(answer, MustWait)
    assert [(one.code, one.subject, one.unit, one.need, one.have) for one in answer.reasons] == [("insufficient-gpus", "n1", "gpus", 4, 0)]
