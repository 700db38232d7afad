"""The one decoder of every border: exact types, no unknown field, the path of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.fleets import FleetKind
from tuneplane.domain.inventory import Gpu, Inventory
from tuneplane.domain.jobs import JoinRequest
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Pool, RuntimeRef, WorkKind

INVENTORY: dict[str, Any] = {"hostname": "h", "node_version": "1", "cpu_count": 1, "memory_bytes": 1}
JOIN: dict[str, Any] = {"token": "t", "join_key": "k", "try": 2, "address": "a", "node_version": "1", "protocol": 1, "inventory": INVENTORY}
CARD = {"index": 0, "uuid": "u", "name": "n", "memory_bytes": 1}
SPEC: dict[str, Any] = {
    "apiVersion": "tuneplane/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "x"},
    "spec": {"command": ["sh"], "runtime": {"image": "x"}},
}


@pytest.mark.parametrize(
    ("kind", "data", "field"),
    [
        (Inventory, {**INVENTORY, "cpu_count": "1"}, "cpu_count"),
        (Inventory, {**INVENTORY, "cpu_count": True}, "cpu_count"),
        (Inventory, {**INVENTORY, "cpu_count": 1.0}, "cpu_count"),
        (Inventory, {**INVENTORY, "hostname": 5}, "hostname"),
        (Inventory, {**INVENTORY, "problems": "abc"}, "problems"),
        (Inventory, {**INVENTORY, "problems": ["a", 3]}, "problems[1]"),
        (Inventory, {**INVENTORY, "problems": {"a": 1}}, "problems"),
        (Inventory, {**INVENTORY, "gpus": [CARD, {**CARD, "x": 1}]}, "gpus[1].x"),
        (Inventory, {**INVENTORY, "budgets": {"gpu_indexes": [0, "1"]}}, "budgets.gpu_indexes[1]"),
        (Metadata, {"name": "x", "labels": [["a", "b"]]}, "labels"),
        (Metadata, {"name": "x", "labels": {"a": 1}}, "labels.a"),
        (Pool, {"series": 3}, "series"),
        (Pool, {"cpus": "1"}, "cpus"),
        (JoinRequest, {key: value for key, value in JOIN.items() if key != "try"}, "try"),
        (JoinRequest, {**JOIN, "try": "1"}, "try"),
        (JoinRequest, {**JOIN, "try_": 1}, "try_"),
        (JoinRequest, {**JOIN, "inventory": {}}, "inventory.hostname"),
        (JobSpec, {**SPEC, "kind": "Training"}, "kind"),
        (JobSpec, {**SPEC, "spec": {**SPEC["spec"], "command": "sh"}}, "spec.command"),
        (JobSpec, {**SPEC, "spec": {**SPEC["spec"], "env": {"A": None}}}, "spec.env.A"),
        (JobSpec, {**SPEC, "spec": {**SPEC["spec"], "init_from": {}}}, "spec.init_from.artifact"),
        (JobSpec, [], "body"),
        (tuple[FleetKind, ...], ["node", "x"], "[1]"),
    ],
)
def test_decode_wrong_data_names_the_field(kind: Any, data: object, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        codec.decode(kind, data)
    assert caught.value.field == field


def test_decode_keyword_field_uses_its_json_name_both_ways() -> None:
    request = codec.decode(JoinRequest, JOIN)
    assert request.try_ == 2
    assert codec.encode(request)["try"] == 2


def test_encode_then_decode_gives_the_same_value() -> None:
    spec = JobSpec(
        apiVersion="tuneplane/v1",
        kind=WorkKind.TRAINING_JOB,
        metadata=Metadata(name="x", labels={"a": "b"}),
        spec=JobBody(command=("a", "b"), runtime=RuntimeRef(image="x"), env={"A": "1"}),
    )
    assert codec.decode(JobSpec, codec.encode(spec)) == spec
    inventory = Inventory(hostname="h", node_version="1", cpu_count=1, memory_bytes=1, gpus=(Gpu(**CARD),))  # type: ignore[arg-type]
    assert codec.decode(Inventory, codec.encode(inventory)) == inventory
