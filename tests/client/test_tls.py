"""The TLS options (trionsq.client.config). Spec: client, section 8."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from tests.client.upgraded import authority, stranger
from trionsq.client import Config, ConfigError


@pytest.fixture
def ca(tmp_path: Path) -> str:
    """A file with the trusted authority."""
    path = str(tmp_path / "ca.pem")
    authority().cert_pem.write_to_path(path)
    return path


def test_by_default_the_system_is_believed() -> None:
    """The system's authorities are trusted, names are checked, and TLS is at least 1.2."""
    for version in ("ssl3.0", "tls1.0", "tls1.2"):
        context = Config(tls_v1=True, tls_min_version=version).ssl_context()
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    newest = Config(tls_min_version="tls1.3").ssl_context()
    assert newest.minimum_version is ssl.TLSVersion.TLSv1_3


def test_with_a_file_nobody_else_is_believed(ca: str) -> None:
    """With tls_root_ca_file the system's authorities are not trusted."""
    (only,) = Config(tls_root_ca_file=ca).ssl_context().get_ca_certs(binary_form=True)
    assert ssl.DER_cert_to_PEM_cert(only) == authority().cert_pem.bytes().decode()


def test_files_are_read_again_when_they_have_changed(ca: str) -> None:
    """The next connection uses a renewed certificate; unchanged files are not read again."""
    config = Config(tls_root_ca_file=ca)
    first = config.ssl_context()
    assert config.ssl_context() is first
    stranger().cert_pem.write_to_path(ca)
    os.utime(ca, ns=(1, 1))
    assert config.ssl_context().get_ca_certs() != first.get_ca_certs()


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("tls_root_ca_file", None),
        ("tls_root_ca_file", b"nonsense"),
        ("tls_root_ca_file", b""),
        ("tls_cert", None),
        ("tls_cert", b"nonsense"),
    ],
)
def test_a_bad_file(option: str, content: bytes | None, tmp_path: Path) -> None:
    """The error names the option and the file."""
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_bytes(content)
    config = Config().parse("tls_v1", f"{option},{path}")
    with pytest.raises(ConfigError, match=rf"^{option}.*: .*{path}.*"):
        config.check_files()


def test_a_key_alone(ca: str) -> None:
    """tls_key without tls_cert is an error."""
    with pytest.raises(ConfigError, match="tls_key needs tls_cert"):
        Config(tls_key=ca).check_files()


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    """A key that does not fit is an error when the files are read."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    authority().issue_cert("me").cert_chain_pems[0].write_to_path(str(cert))
    authority().issue_cert("me").private_key_pem.write_to_path(str(key))
    config = Config(tls_v1=True, tls_cert=str(cert), tls_key=str(key))
    with pytest.raises(ConfigError, match=r"tls_cert, tls_key: .*key values mismatch"):
        config.check_files()


def test_a_key_with_a_passphrase(tmp_path: Path) -> None:
    """It is an error: a program without a terminal would wait for ever."""
    from cryptography.hazmat.primitives import serialization

    cert = authority().issue_cert("me")
    key = serialization.load_pem_private_key(cert.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    path = tmp_path / "both.pem"
    path.write_bytes(locked + cert.cert_chain_pems[0].bytes())
    with pytest.raises(ConfigError, match="tls_cert, tls_key: "):
        Config(tls_v1=True, tls_cert=str(path)).check_files()


def test_files_do_not_matter_to_who_does_not_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS options no context is made, which would read the system's authorities; with
    any of them it is."""
    made: list[Config] = []
    monkeypatch.setattr(Config, "ssl_context", lambda self: made.append(self))
    Config().check_files()
    Config(tls_min_version="tls1.3").check_files()
    assert made == []
    with_tls = Config(tls_v1=True)
    with_tls.check_files()
    assert made == [with_tls]
