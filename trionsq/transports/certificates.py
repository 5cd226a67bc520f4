"""The server's side of TLS: its certificate, and the client certificates that it asks for.

A new connection checks the files for changes, at most once a second. So a renewed certificate is
used without a restart or a signal.

Spec: tcp-protocol, section 8 (client certificates); options.
"""

from __future__ import annotations

import logging
import os
import ssl
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trionsq.transports.tls import Engine, SslEngine, reason_of

__all__ = ["ServerTls", "TlsConfigError", "TlsFiles"]

log = logging.getLogger("trionsq")

_CHECK_INTERVAL_S: Final = 1.0
# OpenSSL's security level usually refuses versions below 1.2, whatever is set here.
_VERSIONS: Final = {
    "tls1.0": ssl.TLSVersion.MINIMUM_SUPPORTED,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}

_Stamp = tuple[tuple[int, int, int] | None, ...]


class TlsConfigError(Exception):
    """The TLS files can't be used; ``str()`` says which and why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS options of nsqd, under the same names.

    Attributes:
        client_auth_policy: ``require`` or ``require-verify``; with any other value no client
            certificate is asked for.
        min_version: ``tls1.0`` to ``tls1.3``.
    """

    cert: str
    key: str
    root_ca_file: str = ""
    client_auth_policy: str = ""
    min_version: str = "tls1.0"


class ServerTls:
    """Makes the engine of each connection, with the current certificate."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            TlsConfigError: they can't be used.
        """
        self._files = files
        self._stamp = self._current_stamp()
        # Of the last failed reload, so that it is logged once.
        self._failure: tuple[_Stamp, str] | None = None
        self._make_engine = _engine_maker(files)
        self._checked_s: float | None = None

    def __repr__(self) -> str:
        return f"<ServerTls {self._files.cert}>"

    def new_engine(self, now_s: float) -> Engine:
        """Make the engine of a connection that was accepted at ``now_s`` (monotonic seconds)."""
        if self._checked_s is None or now_s - self._checked_s >= _CHECK_INTERVAL_S:
            self._checked_s = now_s
            self._reload_if_changed()
        return self._make_engine()

    def _reload_if_changed(self) -> None:
        stamp = self._current_stamp()
        if stamp == self._stamp:
            return
        try:
            self._make_engine = _engine_maker(self._files)
        except TlsConfigError as error:
            # Tried again: it may be for lack of descriptors, and the files do not change then.
            if (failure := (stamp, str(error))) != self._failure:
                self._failure = failure
                log.error(
                    "TLS: changed files can't be used, keeping the old certificate: %s", error
                )
        else:
            self._stamp = stamp
            log.info("TLS: reloaded certificate %s", self._files.cert)

    def _current_stamp(self) -> _Stamp:
        files = self._files
        return tuple(_stamp_of(path) for path in (files.cert, files.key, files.root_ca_file))


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _engine_maker(files: TlsFiles) -> Callable[[], Engine]:
    for flag, path in (("cert", files.cert), ("key", files.key)):
        if not path:
            raise TlsConfigError(f"no --tls-{flag}")
    for path in filter(None, (files.cert, files.key, files.root_ca_file)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise TlsConfigError(f"open {path}: {(error.strerror or str(error)).lower()}") from None
    # Loads all files, so errors are reported here: pyOpenSSL accepts what the ssl module accepted.
    context = _context(files)
    if files.client_auth_policy == "require":
        # Imported here, for this policy only: it takes long to import.
        from trionsq.transports.any_certificate import engine_maker

        return engine_maker(files.cert, files.key, context)
    return lambda: SslEngine(context, server_side=True)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    with warnings.catch_warnings():
        # Whether old versions are allowed is the operator's decision.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = _VERSIONS[files.min_version]
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsConfigError(f"{files.cert}, {files.key}: {_reason(error)}") from error
    if files.client_auth_policy == "require-verify":
        context.verify_mode = ssl.CERT_REQUIRED
    if files.root_ca_file:
        try:
            context.load_verify_locations(files.root_ca_file)
        except (OSError, ValueError) as error:
            raise TlsConfigError(f"{files.root_ca_file}: {_reason(error)}") from error
        # Trust all certificates of the file, not only self-signed ones.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    else:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def _no_password() -> str:
    # Without this OpenSSL would prompt on the terminal.
    raise ValueError("the key is encrypted, which is not supported")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return reason_of(error) or "no certificate found"
    return str(error)
