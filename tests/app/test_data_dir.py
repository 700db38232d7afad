"""The data directory: secrets made once and private, a console certificate that clients can verify, chosen ports."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from tuneplane.app.data_dir import (
    StartRefused,
    choose_port,
    console_certificate,
    load_secrets,
    lock_data_dir,
    open_data_dir,
    utc_now,
)

HOSTS = ["localhost", "127.0.0.1", "::1", "console.example"]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    first = load_secrets(tmp_path, None, None)
    again = load_secrets(tmp_path, None, None)
    assert first.enc_key.reveal() == again.enc_key.reveal()
    assert len(first.enc_key.reveal()) == 32
    assert _mode(tmp_path / "secrets.json") == 0o600
    assert "Secret" not in (tmp_path / "secrets.json").read_text()


def test_secrets_that_cannot_be_read_are_never_replaced(tmp_path: Path) -> None:
    load_secrets(tmp_path, None, None)
    (tmp_path / "secrets.json").write_text("{}")
    with pytest.raises(StartRefused, match="cannot read the secrets"):
        load_secrets(tmp_path, None, None)


def test_data_dir_is_held_by_one_process(tmp_path: Path) -> None:
    with lock_data_dir(tmp_path), pytest.raises(StartRefused, match="another"):
        lock_data_dir(tmp_path)
    lock_data_dir(tmp_path).close()


def test_data_dir_that_cannot_be_made_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartRefused, match="cannot make the data directory"):
        open_data_dir(tmp_path / "file" / "below")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_console_certificate_is_verified_with_the_private_ca(host: str, tmp_path: Path) -> None:
    made = console_certificate(tmp_path, HOSTS, utc_now())
    assert made.ca is not None
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made.certificate, made.key)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with server.wrap_socket(theirs, server_side=True) as wrapped:
            wrapped.sendall(b"hello")

    thread = threading.Thread(target=serve)
    thread.start()
    with ssl.create_default_context(cafile=str(made.ca)).wrap_socket(ours, server_hostname=host) as wrapped:
        assert wrapped.recv(5) == b"hello"
    thread.join(10)
    assert (_mode(made.key), _mode(tmp_path / "console" / "ca.key"), _mode(made.ca)) == (0o600, 0o600, 0o644)


def test_console_certificate_is_kept_until_it_ends_or_lacks_a_name(tmp_path: Path) -> None:
    now = utc_now()

    def serial(hosts: list[str], days: float) -> int:
        made = console_certificate(tmp_path, hosts, now + timedelta(days=days))
        return x509.load_pem_x509_certificate(made.certificate.read_bytes()).serial_number

    first = serial(HOSTS, 0)
    assert serial(HOSTS, 300) == first
    assert serial([*HOSTS, "10.0.0.1"], 0) != first
    assert serial(HOSTS, 380) != first
    assert len((tmp_path / "console-ca.pem").read_text().split("BEGIN CERTIFICATE")) == 2  # the CA stays one and the same


def test_console_certificate_parted_from_its_key_is_issued_again(tmp_path: Path) -> None:
    """A crash between the two writes leaves a new key and the old certificate."""
    made = console_certificate(tmp_path, HOSTS, utc_now())
    old = made.certificate.read_bytes()
    console_certificate(tmp_path, [*HOSTS, "x.example"], utc_now())
    made.certificate.write_bytes(old)
    console_certificate(tmp_path, HOSTS, utc_now())
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(made.certificate, made.key)


def test_choose_port_takes_the_preferred_one_when_free_and_another_when_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        assert choose_port("127.0.0.1", taken) != taken
    assert choose_port("127.0.0.1", taken) == taken


def test_secret_files_hold_json_and_nothing_more(tmp_path: Path) -> None:
    load_secrets(tmp_path, None, None)
    assert set(json.loads((tmp_path / "secrets.json").read_text())) == {"enc_key", "jwt_secret"}
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.json"]  # no partial file is left behind
