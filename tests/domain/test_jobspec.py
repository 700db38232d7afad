"""JobSpec rules: each refusal names its field (R-LCH-07, R-LCH-08, R-LCH-09, R-LCH-11)."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.domain.strategies import job_specs
from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.jobspec import JobSpec, check_job_spec, check_node_fleet_shape, check_supported, cpu_millis, memory_bytes


def _spec(changes: dict, metadata: dict | None = None) -> JobSpec:
    body = {"command": ["true"], "runtime": {"image": "busybox"}, **changes}
    return codec.decode(
        JobSpec,
        {"apiVersion": "tuneplane/v1", "kind": "TrainingJob", "metadata": metadata or {"name": "demo"}, "spec": body},
    )


def _pool(**amounts: object) -> dict:
    return {"resources": {"pools": [amounts]}}


@given(job_specs())
def test_job_spec_a_valid_one_passes_every_rule(spec: JobSpec) -> None:
    check_job_spec(spec)
    check_supported(spec.spec)
    check_node_fleet_shape(spec.spec)
    assert cpu_millis(spec.pool) > 0
    assert memory_bytes(spec.pool) > 0


REFUSED = [
    ({"command": []}, "spec.command"),
    ({"command": [""]}, "spec.command"),
    ({"command": ["true"] * 257}, "spec.command"),
    ({"command": ["a\0b"]}, "spec.command[0]"),
    ({"command": ["x", "\ud800"]}, "spec.command[1]"),
    ({"command": ["x" * (128 * 1024)]}, "spec.command[0]"),
    ({"workdir": "relative"}, "spec.workdir"),
    ({"env": {"1A": "x"}}, "spec.env.1A"),
    ({"env": {"TUNEPLANE_JOB_ID": "x"}}, "spec.env.TUNEPLANE_JOB_ID"),
    ({"env": {"A": "\0"}}, "spec.env.A"),
    ({"env": {"A\n": "x"}}, "spec.env.A\n"),
    ({"runtime": {}}, "spec.runtime"),
    ({"runtime": {"image": "a", "id": "b"}}, "spec.runtime"),
    ({"runtime": {"image": "--privileged"}}, "spec.runtime.image"),
    ({"orchestrator": "ray"}, "spec.runtime.ray_version"),
    ({"orchestrator": "ray", "runtime": {"image": "a", "ray_version": ">=2"}}, "spec.runtime.ray_version"),
    ({"orchestrator": "ray", "runtime": {"image": "a", "ray_version": "\u0662.\u0669.\u0660"}}, "spec.runtime.ray_version"),
    ({"orchestrator": "ray", "runtime": {"image": "a", "ray_version": "1" * 5000 + ".0.0"}}, "spec.runtime.ray_version"),
    ({"runtime": {"image": "a", "ray_version": "junk"}}, "spec.runtime.ray_version"),
    (
        {"orchestrator": "ray", "runtime": {"image": "a", "ray_version": "2.60.0"}, **_pool(memory_gb=0.9)},
        "spec.resources.pools[0].memory_gb",
    ),
    (_pool(nodes=0), "spec.resources.pools[0].nodes"),
    (_pool(gpus_per_node=1, memory_gb=1), "spec.resources.pools[0].cpus"),
    (_pool(gpus_per_node=1, cpus=1), "spec.resources.pools[0].memory_gb"),
    (_pool(gpus_per_node=-1), "spec.resources.pools[0].gpus_per_node"),
    (_pool(cpus=float("nan")), "spec.resources.pools[0].cpus"),
    (_pool(memory_gb=0), "spec.resources.pools[0].memory_gb"),
    ({"resources": {"network": {"transport": "rdma"}}}, "spec.resources.network.transport"),
    ({"resources": {"network": {"isolation": "job"}}}, "spec.resources.network.isolation"),
    ({"resources": {"network": {"interface": "a b"}}}, "spec.resources.network.interface"),
    ({"resources": {"pools": []}}, "spec.resources.pools"),
    ({"priority": 101}, "spec.priority"),
    ({"retries": 11}, "spec.retries"),
    ({"stop": {"signal": "SIGSTOP"}}, "spec.stop.signal"),
    ({"stop": {"grace_seconds": -1}}, "spec.stop.grace_seconds"),
    ({"max_runtime_seconds": 0}, "spec.max_runtime_seconds"),
]


@pytest.mark.parametrize(("changes", "field"), REFUSED, ids=[f"{number}-{field}" for number, (_, field) in enumerate(REFUSED)])
def test_job_spec_a_broken_rule_names_its_field(changes: dict, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_job_spec(_spec(changes))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"init_from": {"artifact": "a"}}, "spec.init_from"),
        ({"capsule": "sha256:0"}, "spec.capsule"),
        ({"volumes": [{"name": "a", "target": "/a"}]}, "spec.volumes"),
    ],
)
def test_job_spec_what_this_version_cannot_do_is_refused_by_name(changes: dict, field: str) -> None:
    with pytest.raises(InvalidInput, match="not supported") as caught:
        check_supported(_spec(changes).spec)
    assert caught.value.field == field


def test_job_spec_ray_of_an_exact_version_is_taken() -> None:
    """R-LCH-09."""
    spec = _spec({"orchestrator": "ray", "runtime": {"image": "a", "ray_version": "2.60.0"}})
    check_job_spec(spec)
    check_supported(spec.spec)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"resources": {"pools": [{}, {"name": "b"}]}}, "Kubernetes or Slurm"),
        (_pool(nodes=9), "at most 8"),
    ],
)
def test_job_spec_too_much_for_a_node_fleet_points_elsewhere(changes: dict, word: str) -> None:
    """R-LCH-08."""
    with pytest.raises(InvalidInput, match=word):
        check_node_fleet_shape(_spec(changes).spec)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a" * 64, "a\n"])
def test_job_spec_name_is_a_slug(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"metadata\.name"):
        check_job_spec(_spec({}, {"name": name}))
