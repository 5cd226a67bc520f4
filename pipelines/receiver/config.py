"""The options of a receiver."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from trionsq.client import Config
from trionsq.wire.names import is_valid_name

__all__ = ["ReceiverConfig", "Share"]

_MSG_TIMEOUT_MS: Final = 15_000


@dataclass(frozen=True, slots=True)
class Share:
    """The nsqds of one of several receivers: each nsqd belongs to exactly one of them.

    nsqd delivers a message again on the same channel. So with shares it comes to the same receiver,
    whose log recognizes it; without them, another receiver may store it a second time.

    Attributes:
        number: of the receiver, from 0; of: number of receivers. By default it has all nsqds.
    """

    number: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ValueError(f"{self.number}/{self.of}: the number must be from 0 to {self.of - 1}")

    @classmethod
    def parse(cls, text: str) -> Share:
        """The share that ``1/4`` names. Raises ValueError."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and int(of)):
            raise ValueError(f"{text!r} is not a number and a count such as 0/4")
        return cls(int(number), int(of))

    def has(self, address: str) -> bool:
        """Whether a discovered nsqd belongs to the receiver: by a hash, whoever else there is."""
        digest = blake2b(address.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.of == self.number

    def of_list(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Those of a list of nsqds that belong to the receiver, in turns."""
        return tuple(addresses[self.number :: self.of])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    """Options of a receiver, checked when the object is made. Picklable.

    Raises:
        ValueError: an invalid value; the text names the attribute.

    Attributes:
        topics: names; or set `topic_pattern`, a regular expression that matches whole names, for
            which the nsqlookupds are polled. One of the two.
        channel: name.
        nsqd_tcp_addresses: ``host:port``. lookupd_http_addresses: the same, or URLs.
        max_in_flight: messages received and not yet stored, over all topics and connections; at
            least one for each. nsqd gives a connection at most --max-rdy-count (2500).
        connections_per_nsqd: for each topic. While the disk writes, a connection has at most its
            share of max_in_flight in flight, so a single connection is slower.
        msg_timeout_ms: nsqd delivers a message again if it is not stored by then; nsqd may grant
            less.
        client: options of the connections: TLS, compression, AUTH, times. Options that a receiver
            sets itself (max_in_flight, backoff, max_attempts, ...) have no effect.
        segment_ms, segment_messages, segment_bytes: a segment is written at the first of these
            limits, or when half of a connection's RDY is waiting.
        max_pending_bytes: bodies that wait for the disk; above half of it RDY is 0, above all of
            it messages are requeued.
        max_duplicates: ids remembered for each topic of an nsqd; None: 2,000,000, or those of twice
            msg_timeout_ms if these are more, and an eighth of the memory for all.
        connect_timeout_s: without any connection by then, the receiver fails.
        stop_timeout_s: limit of `Receiver.stop`: storing pending messages, requeuing the rest.
        probe_s: interval at which a full disk is tried again, and delay of requeued messages.
        nsqd_share: the nsqds to receive from.
        max_topics: more topics that match the pattern are an error.
    """

    channel: str
    topics: tuple[str, ...] = ()
    topic_pattern: str = ""
    nsqd_tcp_addresses: tuple[str, ...] = ()
    lookupd_http_addresses: tuple[str, ...] = ()
    max_in_flight: int = 20_000
    connections_per_nsqd: int = 4
    msg_timeout_ms: int = _MSG_TIMEOUT_MS
    client: Config = field(default_factory=Config)
    segment_ms: int = 50
    segment_messages: int = 20_000
    segment_bytes: int = 16 << 20
    max_pending_bytes: int = 256 << 20
    max_duplicates: int | None = None
    connect_timeout_s: float = 30.0
    stop_timeout_s: float = 15.0
    probe_s: float = 1.0
    nsqd_share: Share = Share()
    max_topics: int = 1000

    def __post_init__(self) -> None:
        if bool(self.topics) == bool(self.topic_pattern):
            raise ValueError("either topics or topic_pattern is needed")
        for name in (*self.topics, self.channel):
            if not is_valid_name(name.encode("utf-8", "surrogatepass")):
                raise ValueError(f"not a valid name: {name!r}")
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("topics has a name twice")
        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            raise ValueError(f"topic_pattern: {error}") from error
        if not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise ValueError("nsqd_tcp_addresses or lookupd_http_addresses is needed")
        if self.topic_pattern and not self.lookupd_http_addresses:
            raise ValueError("topic_pattern needs lookupd_http_addresses")
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if isinstance(value, (int, float)) and not 0 < value < float("inf"):
                raise ValueError(f"{option.name} must be above 0, not {value}")
        minimum = len(self.topics) * self.connections_per_nsqd
        if self.max_in_flight < minimum:
            raise ValueError(
                f"max_in_flight must be at least {minimum}: connections_per_nsqd for each topic"
            )

    def share(self, consumers: int) -> int:
        """The max_in_flight of each consumer, for a number of consumers."""
        return max(1, self.max_in_flight // max(1, consumers))

    def client_config(self) -> Config:
        """The options of a consumer."""
        return dataclasses.replace(
            self.client,
            max_in_flight=self.share(len(self.topics) * self.connections_per_nsqd),
            msg_timeout_s=self.msg_timeout_ms / 1000,
            max_backoff_duration_s=0.0,
            max_attempts=0,
            sample_rate=0,
        )
