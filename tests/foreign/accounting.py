"""What the client programs share: the bodies they publish, and the account they give."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PUB_SHARE = 5
"""One body in this many is published by itself, the others in batches."""
BATCH_MESSAGES = 100


@dataclass(frozen=True, slots=True)
class Order:
    """What a program is asked to do, as its command line says it.

    ``ca``: whom to trust with TLS, "" for none of it. ``compression``: "", snappy or deflate.
    ``secret``: for AUTH, "" for none.
    """

    host: str
    port: int
    topic: str
    count: int
    ca: str = ""
    compression: str = ""
    secret: str = ""

    @property
    def bodies(self) -> list[bytes]:
        """The ``count`` distinct bodies to be published."""
        return [b"message %07d" % number for number in range(self.count)]

    @property
    def singles(self) -> list[bytes]:
        """The bodies that go by PUB."""
        return self.bodies[: self.count // PUB_SHARE]

    @property
    def batches(self) -> Iterator[list[bytes]]:
        """The bodies that go by MPUB."""
        rest = self.bodies[self.count // PUB_SHARE :]
        for first in range(0, len(rest), BATCH_MESSAGES):
            yield rest[first : first + BATCH_MESSAGES]


def read_order(arguments: Sequence[str]) -> Order:
    """The order in ``host:port topic count [ca=path] [compression=name] [secret=text]``."""
    address, topic, count, *options = arguments
    host, _, port = address.rpartition(":")
    return Order(host, int(port), topic, int(count), **dict(word.split("=") for word in options))


def await_start() -> None:
    """Wait for a line on stdin: who started this may first look at the connection that reads."""
    sys.stdin.readline()


def give_account(order: Order, received: Counter[bytes]) -> None:
    """Print how what was received compares with what was published, as one line of JSON."""
    published = set(order.bodies)
    account = {
        "published": len(published),
        "received": len(received),
        "missing": len(published - received.keys()),
        "strange": len(received.keys() - published),
        "again": received.total() - len(received),
    }
    json.dump(account, sys.stdout)
