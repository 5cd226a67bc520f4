"""The options of producers and consumers.

Spec: client, section 8 (configuration).
"""

from __future__ import annotations

import dataclasses
import math
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, Final, Self

import trionsq
from trionsq import durations
from trionsq.client.errors import ConfigError
from trionsq.client.tls import TLS_VERSIONS, tls_context
from trionsq.options import parse_bool

__all__ = ["Config"]

_HOUR_S: Final = 3600.0


def _hostname() -> str:
    return socket.gethostname()


def _ranged(default: Any, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"range": (low, high)})


def _one_of(default: str, *choices: str) -> Any:
    return field(default=default, metadata={"choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Options; every value is checked when the object is made.

    Times are in seconds and their names end in ``_s``; the option's own name, as in
    ``Config().parse("read_timeout,30s")``, is without it.

    Raises:
        ConfigError: a value out of its range.

    Attributes:
        dial_timeout_s: to connect; and again for TLS and compression, until nsqd's first word.
        read_timeout_s: nsqd is silent for so long: the connection is given up.
        write_timeout_s: nsqd takes nothing for so long: the same.
        tcp_user_timeout_s: its machine acknowledges nothing, or has no room for what was sent, for
            so long, by TCP: the same; 0: as the kernel does by itself. An nsqd that is only slow to
            answer is given read_timeout.
        local_addr: ``host:port`` or ``host`` to connect from.
        lookupd_poll_interval_s, lookupd_poll_jitter, lookupd_poll_timeout_s: how often nsqlookupd
            is asked, by which share of that the first time is put off, and how long it may take.
        max_requeue_delay_s, default_requeue_delay_s: a message is requeued without a delay being
            given: default x attempts, at most max.
        backoff_strategy: ``exponential`` or ``full_jitter``.
        max_backoff_duration_s, backoff_multiplier_s: see `trionsq.client.backoff`; max 0: none.
        max_attempts: a message that comes more often is given up; 0: never.
        low_rdy_idle_timeout_s, low_rdy_timeout_s, rdy_redistribute_interval_s: when there are
            more connections than max_in_flight, when one gives its turn to another.
        client_id, hostname, user_agent: what nsqd shows of this client.
        heartbeat_interval_s: nsqd asks so often for a sign of life; -1: never.
        sample_rate: percent of the messages to get; 0: all.
        tls_v1: speak TLS; an nsqd that does not is no nsqd to connect to.
        tls_root_ca_file, tls_cert, tls_key, tls_insecure_skip_verify, tls_min_version: see
            `trionsq.client.tls.tls_context`; with nsqlookupds at https addresses too. The name
            in nsqd's certificate is the host of its address.
        deflate, deflate_level, snappy: ask for compression; nsqd may decline. One of the two.
        output_buffer_size: bytes, -1: none. output_buffer_timeout_s: -1: none.
        max_in_flight: messages given to this consumer and not yet answered, over all connections.
        msg_timeout_s: nsqd delivers again what is not answered for so long; 0: as nsqd says.
        auth_secret: for an nsqd that asks for it; it goes as it is, so use TLS.
        max_msg_size: bytes of a message; a larger one closes the connection; 0: 16 MiB.
        skip_lookupd_authorization: True sends auth_secret to nsqlookupd too (the name is the
            original's).
    """

    dial_timeout_s: float = _ranged(1.0, 0)
    read_timeout_s: float = _ranged(60.0, 0.1, 300)
    write_timeout_s: float = _ranged(1.0, 0.1, 300)
    tcp_user_timeout_s: float = _ranged(10.0, 0, _HOUR_S)
    local_addr: str = ""
    lookupd_poll_interval_s: float = _ranged(60.0, 0.01, 300)
    lookupd_poll_jitter: float = _ranged(0.3, 0, 1)
    lookupd_poll_timeout_s: float = _ranged(60.0, 0)
    max_requeue_delay_s: float = _ranged(900.0, 0, _HOUR_S)
    default_requeue_delay_s: float = _ranged(90.0, 0, _HOUR_S)
    backoff_strategy: str = _one_of("exponential", "exponential", "full_jitter")
    max_backoff_duration_s: float = _ranged(120.0, 0, _HOUR_S)
    backoff_multiplier_s: float = _ranged(1.0, 0, _HOUR_S)
    max_attempts: int = _ranged(5, 0, 65535)
    low_rdy_idle_timeout_s: float = _ranged(10.0, 1, 300)
    low_rdy_timeout_s: float = _ranged(30.0, 1, 300)
    rdy_redistribute_interval_s: float = _ranged(5.0, 0.001, 5)
    client_id: str = field(default_factory=lambda: _hostname().partition(".")[0])
    hostname: str = field(default_factory=_hostname)
    user_agent: str = f"trionsq/{trionsq.__version__}"
    heartbeat_interval_s: float = 30.0
    sample_rate: int = _ranged(0, 0, 99)
    tls_v1: bool = False
    tls_root_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure_skip_verify: bool = False
    tls_min_version: str = _one_of("tls1.0", *TLS_VERSIONS)
    deflate: bool = False
    deflate_level: int = _ranged(6, 1, 9)
    snappy: bool = False
    output_buffer_size: int = 16384
    output_buffer_timeout_s: float = 0.25
    max_in_flight: int = _ranged(1, 0)
    msg_timeout_s: float = _ranged(0.0, 0)
    auth_secret: str = field(default="", repr=False)
    skip_lookupd_authorization: bool = True
    topology_region: str = ""
    topology_zone: str = ""
    max_msg_size: int = _ranged(0, 0, 2**31 - 31)

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            _check(option, getattr(self, option.name))
        if self.heartbeat_interval_s != -1 and not self.heartbeat_interval_s > 0:
            raise ConfigError("heartbeat_interval must be above 0, or -1")
        if self.heartbeat_interval_s > self.read_timeout_s:
            raise ConfigError("heartbeat_interval must not exceed read_timeout")
        if self.output_buffer_size < -1 or (
            self.output_buffer_timeout_s < 0 and self.output_buffer_timeout_s != -1
        ):
            raise ConfigError("output_buffer_size and _timeout must be at least 0, or -1")

    def parse(self, *assignments: str) -> Self:
        """These options with each ``name,value`` changed, as tools take them on the command line.

        ``-`` stands for ``_``; durations are ``1m30s``, or milliseconds; a bare name of a boolean
        means true: ``Config().parse("max_in_flight,200", "read-timeout,1m30s")``.

        Raises:
            ConfigError: no such option, not a value of it, or out of range.
        """
        changes: dict[str, Any] = {}
        for assignment in assignments:
            name, comma, text = assignment.partition(",")
            option = _option(name.strip())
            changes[option.name] = _read(option, text if comma else None)
        return dataclasses.replace(self, **changes)

    def check_files(self) -> None:
        """Raise ConfigError if a file that the options name can't be read, or is no good."""
        if self.tls_v1 or self.tls_root_ca_file or self.tls_cert or self.tls_key:
            self.ssl_context()

    def ssl_context(self) -> ssl.SSLContext:
        """What the TLS options say. Files are read again when they have changed.

        Raises:
            ConfigError: a file can't be read, or is no good.
        """
        return tls_context(
            self.tls_root_ca_file,
            self.tls_cert,
            self.tls_key,
            self.tls_min_version,
            insecure_skip_verify=self.tls_insecure_skip_verify,
        )

    def requeue_delay_s(self, attempts: int) -> float:
        """The delay of a message that is requeued without one being given."""
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
        }
        if self.topology_region or self.topology_zone:
            identity["topology_region"] = self.topology_region
            identity["topology_zone"] = self.topology_zone
        return identity


def _ms(seconds: float) -> int:
    return -1 if seconds == -1 else round(seconds * 1000)


def _check(option: dataclasses.Field[Any], value: object) -> None:
    name = option.name.removesuffix("_s")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be finite")
    low, high = option.metadata.get("range", (None, None))
    if low is not None and not low <= value <= (math.inf if high is None else high):  # type: ignore[operator]
        upper = "" if high is None else f" and at most {high:g}"
        raise ConfigError(f"{name} must be at least {low:g}{upper}, not {value}")
    choices = option.metadata.get("choices")
    if choices and value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value}")


def _option(name: str) -> dataclasses.Field[Any]:
    wanted = name.replace("-", "_")
    for option in dataclasses.fields(Config):
        if option.name.removesuffix("_s") == wanted:
            return option
    raise ConfigError(f"there is no option {name!r}")


def _read(option: dataclasses.Field[Any], text: str | None) -> object:
    kind = option.type
    try:
        if kind == "bool":
            return True if text is None else parse_bool(text)
        if text is None:
            raise ValueError("needs a value")
        if kind == "str":
            return text
        if option.name.endswith("_s"):
            return _read_duration_s(text)
        return int(text) if kind == "int" else float(text)
    except ValueError as error:
        raise ConfigError(f"{option.name.removesuffix('_s')}: {error}") from error


def _read_duration_s(text: str) -> float:
    try:
        ms = int(text)
    except ValueError:
        return durations.parse(text) / durations.SECOND_NS
    return -1.0 if ms == -1 else ms / 1000
