"""Settings: names and rules of interfaces.md; a wrong value names its variable and rule; secrets stay hidden."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from tuneplane.app.settings import (
    Endpoint,
    Secret,
    WrongSetting,
    read_control_settings,
    read_env_file,
    read_node_settings,
)

KEY = base64.b64encode(bytes(range(32))).decode()
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"

WRONG_CONTROL = [
    ("TUNEPLANE_DATABASE_URL", "mysql://x"),
    ("TUNEPLANE_SECRET_ENC_KEY", "short"),
    ("TUNEPLANE_SECRET_ENC_KEY", base64.b64encode(b"x" * 31).decode()),
    ("TUNEPLANE_JWT_SECRET", "x" * 31),
    ("TUNEPLANE_PUBLIC_URL", "http://console.example"),
    ("TUNEPLANE_PUBLIC_URL", "https://console.example/path"),
    ("TUNEPLANE_STORAGE_ROOT", "relative/path"),
    ("TUNEPLANE_NODE_GATEWAY_TARGET", "gateway.example"),
    ("TUNEPLANE_NODE_GATEWAY_TARGET", "https://gateway.example:8443"),
    ("TUNEPLANE_NODE_GATEWAY_TARGET", "gateway.example:0"),
    ("TUNEPLANE_NODE_GATEWAY_TARGET", "gateway.example:65536"),
    ("TUNEPLANE_NODE_GATEWAY_TARGET", "gateway.example:²"),
    ("TUNEPLANE_CONSOLE_LISTEN", "9443"),
    ("TUNEPLANE_GATEWAY_TLS_AUTO_GENERATE", "maybe"),
    ("TUNEPLANE_NODE_GATEWAY_TRUST_BUNDLE", "/nonexistent/bundle.pem"),
    ("TUNEPLANE_TIMINGS_FACTOR", "0"),
    ("TUNEPLANE_TIMINGS_FACTOR", "1.5"),
    ("TUNEPLANE_TIMINGS_FACTOR", "nan"),
]
WRONG_NODE = [
    ("TUNEPLANE_NODE_STATE_DIR", "state"),
    ("TUNEPLANE_NODE_CPUS", "0"),
    ("TUNEPLANE_NODE_CPUS", "inf"),
    ("TUNEPLANE_NODE_MEMORY_GB", "-1"),
    ("TUNEPLANE_NODE_GPU_IDS", "0,0"),
    ("TUNEPLANE_NODE_GPU_IDS", "zero"),
    ("TUNEPLANE_NODE_GPU_IDS", "1,01"),
    ("TUNEPLANE_NODE_GPU_IDS", "0,GPU-8f6a3c"),
    ("TUNEPLANE_NODE_GPU_IDS", "GPU-8f6a3c,GPU-8f6a3c"),
    ("TUNEPLANE_NODE_GPU_IDS", "MIG-GPU-8f6a3c/1/0"),
    ("TUNEPLANE_NODE_PORT_RANGE", "20999-20000"),
    ("TUNEPLANE_NODE_PORT_RANGE", "80-90"),
    ("TUNEPLANE_NODE_STAGING_CAPACITY_GB", "-0.1"),
    ("TUNEPLANE_NODE_RUNTIME", "crun"),
    ("TUNEPLANE_NODE_ADDRESS", "not a host"),
]


@pytest.mark.parametrize(("variable", "value"), WRONG_CONTROL)
def test_control_setting_with_wrong_value_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(WrongSetting) as caught:
        read_control_settings({variable: value}, env_file=None)
    assert caught.value.variable == variable


@pytest.mark.parametrize(("variable", "value"), WRONG_NODE)
def test_node_setting_with_wrong_value_is_refused_by_name(variable: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(WrongSetting) as caught:
        read_node_settings({variable: value}, env_file=tmp_path / "none")
    assert caught.value.variable == variable


@pytest.mark.parametrize("variable", ["TUNEPLANE_SECRET_ENC_KEY", "TUNEPLANE_JWT_SECRET", "TUNEPLANE_DATABASE_URL"])
def test_refusal_of_a_secret_does_not_repeat_it(variable: str) -> None:
    """R-CRD-05."""
    with pytest.raises(WrongSetting) as caught:
        read_control_settings({variable: "hunter2"}, env_file=None)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_control_settings_without_variables_have_defaults() -> None:
    settings = read_control_settings({}, env_file=None)
    assert settings.database_url is None
    assert settings.gateway_tls_auto_generate
    assert settings.gateway_tls_dir == Path(".tuneplane-data/gateway-tls")  # R-TLS-01
    assert settings.timings.heartbeat == 7.0


def test_timings_factor_scales_every_duration() -> None:
    settings = read_control_settings({"TUNEPLANE_TIMINGS_FACTOR": "0.05"}, env_file=None)
    assert settings.timings.heartbeat == pytest.approx(0.35)


@pytest.mark.parametrize(
    "require",
    [lambda s: s.require_database(), lambda s: s.require_enc_key(), lambda s: s.require_jwt_secret()],
)
def test_required_setting_that_is_unset_is_named(require: Callable[[object], object]) -> None:
    with pytest.raises(WrongSetting, match="must be set"):
        require(read_control_settings({}, env_file=None))


def test_secrets_never_show_in_a_repr() -> None:
    """R-CRD-05."""
    settings = read_control_settings({"TUNEPLANE_SECRET_ENC_KEY": KEY, "TUNEPLANE_JWT_SECRET": "j" * 40}, env_file=None)
    assert settings.require_enc_key() == bytes(range(32))
    for text in (repr(settings), str(settings), f"{settings.jwt_secret}"):
        assert KEY not in text
        assert "j" * 10 not in text
        assert "\\x1f" not in text
    assert str(Secret(b"hush")) == "Secret(…)"


@pytest.mark.parametrize(("text", "endpoint"), [("g.example:8443", Endpoint("g.example", 8443)), ("[::1]:1", Endpoint("::1", 1))])
def test_endpoint_is_read_and_spelled_alike(text: str, endpoint: Endpoint) -> None:
    assert read_control_settings({"TUNEPLANE_NODE_GATEWAY_TARGET": text}, env_file=None).node_gateway_target == endpoint
    assert str(endpoint) == text


def test_trust_bundle_with_a_private_key_is_refused(tmp_path: Path) -> None:
    """R-TLS-09."""
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(CERTIFICATE + "-----BEGIN EC PRIVATE KEY-----\nMA==\n-----END EC PRIVATE KEY-----\n")
    with pytest.raises(WrongSetting, match="private key"):
        read_node_settings({"TUNEPLANE_NODE_TRUST_BUNDLE": str(bundle)}, env_file=tmp_path / "none")
    bundle.write_text(CERTIFICATE)
    assert read_node_settings({"TUNEPLANE_NODE_TRUST_BUNDLE": str(bundle)}, env_file=tmp_path / "none").trust_bundle == bundle


def test_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(WrongSetting, match="TUNEPLANE_CONSOLE_PRIVATE_KEY must be set too"):
        read_control_settings({"TUNEPLANE_CONSOLE_CERTIFICATE": "/c.pem"}, env_file=None)


def test_gpu_ids_tell_unset_from_empty(tmp_path: Path) -> None:
    """R-ENR-09: empty declares a CPU-only Node, unset is not declared."""
    none = tmp_path / "none"
    assert read_node_settings({}, env_file=none).gpu_ids is None
    assert read_node_settings({"TUNEPLANE_NODE_GPU_IDS": ""}, env_file=none).gpu_ids == ()
    assert read_node_settings({"TUNEPLANE_NODE_GPU_IDS": "2, 0"}, env_file=none).gpu_ids == (2, 0)


def test_gpu_ids_by_uuid_declare_cards_and_no_index(tmp_path: Path) -> None:
    """L-D1, L-D6: a card or a MIG instance, in the driver's words."""
    read = read_node_settings({"TUNEPLANE_NODE_GPU_IDS": "GPU-8f6a3c-1, MIG-c738"}, env_file=tmp_path / "none")
    assert (read.gpu_ids, read.gpu_uuids) == ((), ("GPU-8f6a3c-1", "MIG-c738"))
    assert read_node_settings({"TUNEPLANE_NODE_GPU_IDS": "2,0"}, env_file=tmp_path / "none").gpu_uuids == ()


@pytest.mark.parametrize("below", ["", "tuneplane", "a/b"])
def test_state_dir_under_the_storage_root_is_refused(below: str, tmp_path: Path) -> None:
    """R-ENR-04."""
    values = {"TUNEPLANE_STORAGE_ROOT": str(tmp_path), "TUNEPLANE_NODE_STATE_DIR": str(tmp_path / below)}
    with pytest.raises(WrongSetting, match="TUNEPLANE_NODE_STATE_DIR"):
        read_node_settings(values, env_file=tmp_path / "none").require_state_dir()


def test_state_dir_that_is_unset_is_refused(tmp_path: Path) -> None:
    """R-ENR-04."""
    with pytest.raises(WrongSetting, match="TUNEPLANE_NODE_STATE_DIR must be set"):
        read_node_settings({}, env_file=tmp_path / "none").require_state_dir()


def test_env_file_reads_like_the_environment_and_yields_to_it(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# ours\n\nexport TUNEPLANE_STORAGE_ROOT='/srv/with space'\nTUNEPLANE_PUBLIC_URL=https://a.example # note\n")
    assert read_env_file(file)["TUNEPLANE_STORAGE_ROOT"] == "/srv/with space"
    settings = read_control_settings({"TUNEPLANE_PUBLIC_URL": "https://b.example"}, env_file=file)
    assert (settings.storage_root, settings.public_url) == (Path("/srv/with space"), "https://b.example")


@pytest.mark.parametrize("line", ["TUNEPLANE_X", "1X=2", "=x"])
def test_env_file_with_a_line_that_is_no_setting_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(f"A=1\n{line}\n")
    with pytest.raises(WrongSetting, match="line 2"):
        read_env_file(file)
