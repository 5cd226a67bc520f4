"""TLS in a process without free descriptors (EMFILE)."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from tests.descriptors import no_free_descriptors
from tests.transports.ends import write_pair
from tests.transports.test_certificates import name_seen
from trionsq.client import Config, ConfigError
from trionsq.transports.certificates import ServerTls, TlsFiles
from trionsq.transports.tls import client_context


def test_a_renewed_certificate_is_read_when_descriptors_are_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """nsqd keeps the old certificate, logs the error once, and uses the new one within a second of
    when it can read it, though the files do not change again."""
    cert, key = write_pair(tmp_path, name="old")
    tls = ServerTls(TlsFiles(cert, key))
    write_pair(tmp_path, name="new")
    with no_free_descriptors():
        for now_s in (1.0, 2.0, 3.0):
            tls.new_engine(now_s)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "TLS: changed files can't be used, keeping the old certificate: "
        f"open {cert}: too many open files"
    ]
    assert name_seen(tls, 4.0) == "new"


has_system_authorities = pytest.mark.skipif(
    not ssl.create_default_context().cert_store_stats()["x509_ca"],
    reason="the system has no file of certificate authorities",
)


@has_system_authorities
def test_authorities_that_cannot_be_read_are_an_error() -> None:
    """The ssl module would trust nobody from then on, and say nothing."""
    with no_free_descriptors(), pytest.raises(OSError, match="Too many open files"):
        client_context()
    assert client_context().cert_store_stats()["x509_ca"]


@has_system_authorities
def test_a_client_trusts_the_system_again() -> None:
    """A connection that fails for lack of descriptors does not leave a context that trusts nobody
    to all later ones."""
    # No other test has these options: contexts are kept.
    config = Config(tls_v1=True, tls_min_version="tls1.3", tls_insecure_skip_verify=True)
    with no_free_descriptors(), pytest.raises(ConfigError, match="too many open files"):
        config.ssl_context()
    assert config.ssl_context().cert_store_stats()["x509_ca"]
