"""A Fleet's ``config``: every key has its rule, and no key is silently without effect (R-FLT-03, R-FLT-10, R-ENR-11)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH
from tests.domain.test_hardware import FLEET, machine
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.fleet_config import (
    SETTINGS,
    check_config,
    config_warnings,
    gang_deadline,
    serving_ports,
    storage_root,
    why_other_root,
)
from tuneplane.domain.fleets import FleetKind
from tuneplane.domain.liveness import readiness

INTERFACE = {  # interfaces.md, "Settings": Fleet `config` keys
    "slurm_rest_url",
    "slurm_partition",
    "slurm_user",
    "kubernetes_api_url",
    "kubernetes_namespace",
    "kuberay_namespace",
    "storage_root",
    "serving_port_range",
    "gang_deadline_seconds",
}
BAD_URLS = (
    "slurm.corp:6820 ftp://slurm.corp https:// https://u:p@slurm.corp https://a?x=1 https://a#f https://a:0 https://a:99999 https://a? //a"
)
URLS = (
    ["https://slurm.corp:6820", "http://10.0.0.1:6820/slurm/v0.0.40", "https://[::1]:6443", "https://k8s.corp/"],
    [*BAD_URLS.split(), "", "https://a b", "https://a/é", "https://a/\n"],
)
LABELS = (["default", "ray-2", "a"], ["Default", "-a", "a-", "a_b", "a.b", "x" * 64, "", "a\n"])
VALUES: dict[str, tuple[list[str], list[str]]] = {
    "slurm_rest_url": URLS,
    "slurm_partition": (["gpu", "GPU_A100", "a.b-c", "0"], ["", "a b", "-gpu", "gpu\n", "x" * 65, "gpu,cpu"]),
    "slurm_user": (["svc-train", "_slurm", "j.doe"], ["", "0day", "a b", "root\n", "x" * 33, "-x"]),
    "kubernetes_api_url": URLS,
    "kubernetes_namespace": LABELS,
    "kuberay_namespace": LABELS,
    "storage_root": (
        ["/srv/tuneplane", "/mnt/é", "/a/b/"],
        ["", "/", "srv", "/srv/../etc", "/srv//x", "//srv", "/srv/.", "/srv\n", "./srv", "///"],
    ),
    "serving_port_range": (
        ["30000-30999", "1024-65535", "8080-8080"],
        ["", "30000", "30999-30000", "80-90", "60000-70000", "a-b", "1024-2000 ", "\uff11024-2000", "30000-30999-1"],
    ),
    "gang_deadline_seconds": (
        ["1", "90", "86400", "1.5", "600.25"],
        ["", "0", "0.9", "86401", "soon", "nan", "inf", "1e309", "6_0", " 60", "\uff16\uff10\uff10", "-1"],
    ),
}
GOOD = [(key, value) for key, (good, _) in VALUES.items() for value in good]
BAD = [(key, value) for key, (_, bad) in VALUES.items() for value in bad]


def test_every_key_of_the_interface_has_a_rule_and_no_other_has() -> None:
    assert set(SETTINGS) == INTERFACE == set(VALUES)


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_good_value_is_taken_without_a_warning_where_it_is_read(key: str, value: str) -> None:
    check_config({key: value})
    for kind in SETTINGS[key].kinds:
        assert config_warnings({key: value}, kind) == ()


@pytest.mark.parametrize(("key", "value"), BAD)
def test_bad_value_is_refused_naming_the_key_and_its_rule(key: str, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_config({"odd": "kept", key: value})
    assert (caught.value.field, caught.value.rule) == (f"config.{key}", SETTINGS[key].rule)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({str(number): "" for number in range(65)}, "config"),
        ({"a": "x" * 4097}, "config.a"),
        ({"x" * 4097: "a"}, f"config.{'x' * 64}"),
    ],
)
def test_config_has_limits(config: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_config(config)
    assert caught.value.field == field


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=5), st.sampled_from(FleetKind))
def test_every_key_that_nothing_reads_is_warned_about_once(config: dict[str, str], kind: FleetKind) -> None:
    """R-FLT-03: neither refused nor silent."""
    unread = [key for key in config if key not in SETTINGS or kind not in SETTINGS[key].kinds]
    assert len(config_warnings(config, kind)) == len(unread)
    check_config({key: value for key, value in config.items() if key not in SETTINGS})


def test_warning_names_the_key_and_what_may_have_been_meant() -> None:
    """R-FLT-03: a misspelled override is a setting that its operator believes is in effect."""
    (misspelled,) = config_warnings({"storage_root": "/srv", "storage_rot": "/srv"}, FleetKind.NODE)
    assert "'storage_rot'" in misspelled
    assert "'storage_root'" in misspelled
    (elsewhere,) = config_warnings({"slurm_partition": "gpu"}, FleetKind.NODE)
    assert "'slurm_partition'" in elsewhere
    assert "kind 'slurm'" in elsewhere


def test_read_values_are_what_was_written() -> None:
    assert serving_ports({"serving_port_range": "30000-30999"}) == (30000, 30999)
    assert serving_ports({}) is None
    assert gang_deadline({"gang_deadline_seconds": "90.5"}) == 90.5
    assert gang_deadline({}) is None
    assert storage_root({"storage_root": "/mnt/shared/"}, "/srv") == "/mnt/shared"
    assert storage_root({}, "/srv") == "/srv"


@pytest.mark.parametrize(
    ("config", "told", "names"),
    [
        ({}, "/srv", ()),
        ({"storage_root": "/srv/"}, "/srv", ()),
        ({"storage_root": "/srv/a"}, "/srv/b", ("/srv/a", "/srv/b")),
        ({"storage_root": "/srv/a"}, "", ("/srv/a", "not set")),
    ],
)
def test_machine_with_another_storage_root_than_its_fleet_is_not_ready(config: dict[str, str], told: str, names: tuple[str, ...]) -> None:
    """R-ENR-11: the reason names both; its jobs would be refused on the machine."""
    node = machine("n1", [])
    assert node.inventory is not None
    node = evolve(node, inventory=evolve(node.inventory, storage_root=told))
    fleet = evolve(FLEET, config=config)
    ready = readiness(node, fleet, EPOCH + timedelta(seconds=1))
    assert ready.value == (not names)
    assert all(any(name in reason for reason in ready.reasons) for name in names)
    assert bool(why_other_root(config, told)) == bool(names)
