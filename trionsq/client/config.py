"""The options of producers and consumers, and the TLS context that they describe.

The options are a table as that of the daemons: see `trionsq.options`.

Spec: client, sections 1 (TLS) and 8 (configuration).
"""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
from functools import lru_cache
from typing import Any, Final, Self

import trionsq
from trionsq.client.errors import ConfigError
from trionsq.options import BOOL, FLOAT, INT, SECONDS, STRING, choice, option, table
from trionsq.transports import tls

__all__ = ["Config", "reason_of"]

_HOUR_S: Final = 3600.0
# Decimal, whatever it begins with, as in go-nsq.
_INTEGER: Final = dataclasses.replace(INT, parse=int)
_BACKOFF_STRATEGY: Final = choice("name", "exponential", "full_jitter")
_TLS_VERSION: Final = choice("version", "ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3")
# Sets of TLS files that are kept: a program's own, and those before a renewal.
_MAX_CONTEXTS: Final = 16


def _short_hostname() -> str:
    return socket.gethostname().partition(".")[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Options; every value is checked when the object is made.

    Times are in seconds and their names end in ``_s``. The option's own name, as in
    ``Config().parse("read_timeout,30s")``, is without that ending.

    Raises:
        ConfigError: a value out of its range.
    """

    dial_timeout_s: float = option(
        "dial_timeout", 1.0, SECONDS, "to connect; and again for TLS and compression", low=0
    )
    read_timeout_s: float = option(
        "read_timeout",
        60.0,
        SECONDS,
        "close the connection when nsqd sends nothing for this long",
        low=0.1,
        high=300,
    )
    write_timeout_s: float = option(
        "write_timeout",
        1.0,
        SECONDS,
        "close the connection when nsqd reads nothing for this long",
        low=0.1,
        high=300,
    )
    tcp_user_timeout_s: float = option(
        "tcp_user_timeout",
        10.0,
        SECONDS,
        "close the connection when nsqd's machine acknowledges nothing, or has no room for data,"
        " for this long; 0: as the kernel decides. A slow nsqd has read_timeout",
        low=0,
        high=_HOUR_S,
    )
    local_addr: str = option("local_addr", "", STRING, "host:port or host to connect from")
    lookupd_poll_interval_s: float = option(
        "lookupd_poll_interval",
        60.0,
        SECONDS,
        "how often nsqlookupd is polled",
        low=0.01,
        high=300,
    )
    lookupd_poll_jitter: float = option(
        "lookupd_poll_jitter",
        0.3,
        FLOAT,
        "the second poll is delayed by up to this part of the interval",
        low=0,
        high=1,
    )
    lookupd_poll_timeout_s: float = option(
        "lookupd_poll_timeout", 60.0, SECONDS, "time limit of a poll", low=0
    )
    max_requeue_delay_s: float = option(
        "max_requeue_delay",
        900.0,
        SECONDS,
        "longest delay of a message that is requeued without one",
        low=0,
        high=_HOUR_S,
    )
    default_requeue_delay_s: float = option(
        "default_requeue_delay",
        90.0,
        SECONDS,
        "delay of a message that is requeued without one, for each attempt",
        low=0,
        high=_HOUR_S,
    )
    backoff_strategy: str = option(
        "backoff_strategy", "exponential", _BACKOFF_STRATEGY, "exponential or full_jitter"
    )
    max_backoff_duration_s: float = option(
        "max_backoff_duration", 120.0, SECONDS, "longest pause; 0: no backoff", low=0, high=_HOUR_S
    )
    backoff_multiplier_s: float = option(
        "backoff_multiplier",
        1.0,
        SECONDS,
        "multiplied by 2 to the power of the level: the pause",
        low=0,
        high=_HOUR_S,
    )
    max_attempts: int = option(
        "max_attempts",
        5,
        _INTEGER,
        "a message that is delivered more often is given up; 0: never",
        low=0,
        high=65535,
    )
    low_rdy_idle_timeout_s: float = option(
        "low_rdy_idle_timeout",
        10.0,
        SECONDS,
        "with more connections than max_in_flight: drop to RDY 0 after this long without a message",
        low=1,
        high=300,
    )
    low_rdy_timeout_s: float = option(
        "low_rdy_timeout",
        30.0,
        SECONDS,
        "with more connections than max_in_flight: drop to RDY 0 after this long",
        low=1,
        high=300,
    )
    rdy_redistribute_interval_s: float = option(
        "rdy_redistribute_interval",
        5.0,
        SECONDS,
        "how often connections that are to drop to RDY 0 are looked for",
        low=0.001,
        high=5,
    )
    client_id: str = option(
        "client_id", "", STRING, "name of this client at nsqd", factory=_short_hostname
    )
    hostname: str = option(
        "hostname", "", STRING, "host of this client at nsqd", factory=socket.gethostname
    )
    user_agent: str = option(
        "user_agent", f"trionsq/{trionsq.__version__}", STRING, "program of this client at nsqd"
    )
    heartbeat_interval_s: float = option(
        "heartbeat_interval", 30.0, SECONDS, "time between nsqd's heartbeats; -1: none"
    )
    sample_rate: int = option(
        "sample_rate", 0, _INTEGER, "percentage of messages to receive; 0: all", low=0, high=99
    )
    tls_v1: bool = option(
        "tls_v1", False, BOOL, "use TLS; fail to connect if nsqd does not offer it"
    )
    tls_root_ca_file: str = option(
        "tls_root_ca_file",
        "",
        STRING,
        "PEM file of trusted authorities, instead of the system's; for nsqlookupd by https as well",
    )
    tls_cert: str = option("tls_cert", "", STRING, "PEM file of the client's certificate")
    tls_key: str = option("tls_key", "", STRING, "PEM file of its key, unless tls_cert has it")
    tls_insecure_skip_verify: bool = option(
        "tls_insecure_skip_verify", False, BOOL, "accept any certificate, for any name"
    )
    tls_min_version: str = option(
        "tls_min_version", "tls1.0", _TLS_VERSION, "ssl3.0 to tls1.3; in practice at least tls1.2"
    )
    deflate: bool = option("deflate", False, BOOL, "ask for deflate; nsqd may decline")
    deflate_level: int = option("deflate_level", 6, _INTEGER, "level of deflate", low=1, high=9)
    snappy: bool = option("snappy", False, BOOL, "ask for snappy; nsqd may decline")
    output_buffer_size: int = option(
        "output_buffer_size", 16384, _INTEGER, "bytes that nsqd may buffer; -1: none"
    )
    output_buffer_timeout_s: float = option(
        "output_buffer_timeout", 0.25, SECONDS, "how long nsqd may buffer them; -1: none"
    )
    max_in_flight: int = option(
        "max_in_flight",
        1,
        _INTEGER,
        "messages that a consumer may have received and not answered, over all connections",
        low=0,
    )
    msg_timeout_s: float = option(
        "msg_timeout",
        0.0,
        SECONDS,
        "nsqd redelivers a message that is not answered for this long; 0: nsqd's own value",
        low=0,
    )
    auth_secret: str = option(
        "auth_secret",
        "",
        STRING,
        "secret for an nsqd that requires one; sent as it is, so use TLS",
        secret=True,
    )
    skip_lookupd_authorization: bool = option(
        "skip_lookupd_authorization",
        True,
        BOOL,
        "send auth_secret to nsqlookupd as well (the name is the original's)",
    )
    topology_region: str = option("topology_region", "", STRING, "region of this client")
    topology_zone: str = option("topology_zone", "", STRING, "zone of this client")
    max_msg_size: int = option(
        "max_msg_size",
        0,
        _INTEGER,
        "largest message in bytes; a larger one closes the connection; 0: 16 MiB",
        low=0,
        high=2**31 - 31,
    )

    def __post_init__(self) -> None:
        for name, spec in table(self):
            try:
                spec.check(getattr(self, name))
            except ValueError as error:
                raise ConfigError(f"{spec.flag} {error}") from None
        if self.heartbeat_interval_s != -1 and not self.heartbeat_interval_s > 0:
            raise ConfigError("heartbeat_interval must be above 0, or -1")
        if self.heartbeat_interval_s > self.read_timeout_s:
            raise ConfigError("heartbeat_interval must not exceed read_timeout")
        if self.output_buffer_size < -1 or (
            self.output_buffer_timeout_s < 0 and self.output_buffer_timeout_s != -1
        ):
            raise ConfigError("output_buffer_size and _timeout must be at least 0, or -1")

    def parse(self, *assignments: str) -> Self:
        """Return these options with each ``name,value`` changed, as tools take them from flags.

        ``-`` may stand for ``_``. A duration is ``1m30s`` or a number of milliseconds; the name of
        a boolean alone means true: ``Config().parse("max_in_flight,200", "read-timeout,1m30s")``.

        Raises:
            ConfigError: no such option, not a value of it, or out of range.
        """
        by_flag = {spec.flag: (name, spec.kind) for name, spec in table(Config)}
        changes: dict[str, Any] = {}
        for assignment in assignments:
            flag, comma, text = assignment.partition(",")
            flag = flag.strip().replace("-", "_")
            if flag not in by_flag:
                raise ConfigError(f"there is no option {flag!r}")
            name, kind = by_flag[flag]
            if not comma and kind.bare is None:
                raise ConfigError(f"{flag}: needs a value")
            try:
                changes[name] = kind.parse(text if comma else kind.bare or "")
            except ValueError as error:
                raise ConfigError(f"{flag}: {error}") from error
        return dataclasses.replace(self, **changes)

    def check_files(self) -> None:
        """Raise ConfigError if a file that the options name cannot be read or used."""
        if self.tls_v1 or self.tls_root_ca_file or self.tls_cert or self.tls_key:
            self.ssl_context()

    def ssl_context(self) -> ssl.SSLContext:
        """The context that the TLS options describe. Files that have changed are read again.

        Raises:
            ConfigError: a file cannot be read or used; the text names its option.
        """
        if self.tls_key and not self.tls_cert:
            raise ConfigError("tls_key needs tls_cert")
        return _ssl_context(
            _with_mtime("tls_root_ca_file", self.tls_root_ca_file),
            _with_mtime("tls_cert", self.tls_cert),
            _with_mtime("tls_key", self.tls_key),
            self.tls_min_version,
            self.tls_insecure_skip_verify,
        )

    def requeue_delay_s(self, attempts: int) -> float:
        """The delay of a message that is requeued without one."""
        return min(self.default_requeue_delay_s * attempts, self.max_requeue_delay_s)

    def identity(self) -> dict[str, object]:
        """The body of IDENTIFY."""
        identity: dict[str, object] = {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "short_id": self.client_id,
            "long_id": self.hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "tls_v1": self.tls_v1,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "snappy": self.snappy,
            "heartbeat_interval": _ms(self.heartbeat_interval_s),
            "sample_rate": self.sample_rate,
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": _ms(self.output_buffer_timeout_s),
            "msg_timeout": _ms(self.msg_timeout_s),
            "dead_letters": True,
        }
        if self.topology_region or self.topology_zone:
            identity["topology_region"] = self.topology_region
            identity["topology_zone"] = self.topology_zone
        return identity


# So that help(Config) describes each option.
_HELP: Final = "\n".join(f"        {name}: {spec.help}." for name, spec in table(Config))
Config.__doc__ = f"{Config.__doc__}\n    Attributes:\n{_HELP}\n"


def reason_of(error: OSError) -> str:
    """Why a TLS handshake failed, in words for an operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {tls.weakness_of(error) or error.verify_message}"
    return tls.reason_of(error)


def _ms(seconds: float) -> int:
    return -1 if seconds == -1 else round(seconds * 1000)


def _with_mtime(flag: str, path: str) -> tuple[str, int]:
    """The path and its time of modification: the key under which its content is kept."""
    try:
        return path, os.stat(path).st_mtime_ns if path else 0
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag}: {error}") from error


@lru_cache(maxsize=_MAX_CONTEXTS)
def _ssl_context(
    root_ca_file: tuple[str, int],
    cert: tuple[str, int],
    key: tuple[str, int],
    min_version: str,
    insecure_skip_verify: bool,
) -> ssl.SSLContext:
    try:
        context = tls.client_context(root_ca_file[0])
    except OSError as error:
        path = root_ca_file[0] or error.filename
        raise ConfigError(f"tls_root_ca_file: {path}: {reason_of(error)}") from error
    # Older versions are never spoken, whatever tls_min_version says.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if min_version == "tls1.3":
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert[0]:
        try:
            # Without the function, OpenSSL would ask the terminal for the passphrase of a key.
            context.load_cert_chain(cert[0], key[0] or None, password=_no_passphrase)
        except OSError as error:
            files = " and ".join(filter(None, (cert[0], key[0])))
            raise ConfigError(f"tls_cert, tls_key: {files}: {reason_of(error)}") from error
    return context


def _no_passphrase() -> str:
    return ""
