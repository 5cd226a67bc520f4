"""Whom a client trusts, and what it shows of itself: the TLS options as an `ssl.SSLContext`.

Spec: client, sections 1 and 8 (tls_* options).
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import Final

from trionsq.client.errors import ConfigError
from trionsq.transports import tls

__all__ = ["TLS_VERSIONS", "reason_of", "tls_context"]

TLS_VERSIONS: Final = ("ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3")
"""The values of tls_min_version. What is older than TLS 1.2 is never spoken."""

# So many sets of files at once: a program's own, and those before a renewal.
_CONTEXTS: Final = 16


def tls_context(
    root_ca_file: str, cert: str, key: str, min_version: str, *, insecure_skip_verify: bool
) -> ssl.SSLContext:
    """Read the files; what was read before and has not changed is not read again.

    Args:
        root_ca_file: PEM file of those who are trusted; "": those that the system trusts.
        cert, key: PEM files of the client's own certificate, "" for none; ``key`` may be "" if
            ``cert`` holds both.
        min_version: of `TLS_VERSIONS`.
        insecure_skip_verify: take any certificate, of whomever and for whatever name.

    Raises:
        ConfigError: a file can't be read, or is no good; the text names its option.
    """
    if key and not cert:
        raise ConfigError("tls_key needs tls_cert")
    return _context(
        _stamped("tls_root_ca_file", root_ca_file),
        _stamped("tls_cert", cert),
        _stamped("tls_key", key),
        min_version,
        insecure_skip_verify,
    )


def reason_of(error: OSError) -> str:
    """What an operator has to know of a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {tls.weakness_of(error) or error.verify_message}"
    return tls.reason_of(error)


def _stamped(option: str, path: str) -> tuple[str, int]:
    """The path, and what changes with the file."""
    try:
        return path, os.stat(path).st_mtime_ns if path else 0
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option}: {error}") from error


@lru_cache(maxsize=_CONTEXTS)
def _context(
    root_ca_file: tuple[str, int],
    cert: tuple[str, int],
    key: tuple[str, int],
    min_version: str,
    insecure_skip_verify: bool,
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=root_ca_file[0] or None)
    except OSError as error:
        raise ConfigError(f"tls_root_ca_file: {root_ca_file[0]}: {reason_of(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if min_version == "tls1.3":
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert[0]:
        try:
            # Without the function, a key with a passphrase would ask the terminal for it.
            context.load_cert_chain(cert[0], key[0] or None, password=_no_passphrase)
        except OSError as error:
            files = " and ".join(filter(None, (cert[0], key[0])))
            raise ConfigError(f"tls_cert, tls_key: {files}: {reason_of(error)}") from error
    return context


def _no_passphrase() -> str:
    return ""
