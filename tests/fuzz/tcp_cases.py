"""Streams of commands, right and wrong: what a client of the TCP protocol may send."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tests.fuzz.mutate import INT32S, case_random, mutated
from trionsq.wire import commands
from trionsq.wire.states import MAGIC_V2

TOPICS = ("t", "u", "v.w-x_y", "e#ephemeral")
CHANNELS = ("c", "d", "f#ephemeral")
NAMES = (b"PUB", b"MPUB", b"DPUB", b"SUB", b"RDY", b"FIN", b"REQ", b"TOUCH", b"NOP", b"CLS",
         b"IDENTIFY", b"AUTH", b"pub", b"", b"GET", b"\xff\xfe")  # fmt: skip
IDENTITIES: tuple[dict[str, object], ...] = (
    {},
    {"feature_negotiation": True, "client_id": "x", "msg_timeout": 1000},
    {"heartbeat_interval": -1},
    {"heartbeat_interval": 1000, "sample_rate": 50, "feature_negotiation": True},
    {"heartbeat_interval": 10**12},
    {"sample_rate": -1},
    {"output_buffer_size": -2, "output_buffer_timeout": 2**70},
    {"snappy": True, "deflate": True, "tls_v1": True, "feature_negotiation": True},
    {"client_id": ["x"], "hostname": {"a": None}},
    {"feature_negotiation": True, "dead_letters": True, "client_id": "y"},
)
REASONS = ("broken", "x" * 200, "no such customer", "\u00fc")


def _body(random: Random) -> bytes:
    return random.randbytes(random.choice((1, 1, 5, 30, 30, 200, 2000)))


def _id(random: Random) -> bytes:
    return b"%016x" % random.randrange(16**3)


def _mpub(random: Random) -> bytes:
    bodies = [_body(random) for _ in range(random.randint(1, 8))]
    if random.random() < 0.5:
        bodies = [bodies[0]] * len(bodies)
    return commands.publish_many(random.choice(TOPICS), bodies)


def _wrong_mpub(random: Random) -> bytes:
    sizes = (random.choice(INT32S) for _ in range(random.randint(1, 4)))
    return b"MPUB t\n" + b"".join(struct.pack(">i", size) for size in sizes) + b"x" * 9


def _sized(random: Random) -> bytes:
    name = random.choice((b"IDENTIFY", b"AUTH", b"PUB t", b"DPUB t 10", b"MPUB t"))
    return name + b"\n" + struct.pack(">i", random.choice(INT32S)) + _body(random)


def _odd_line(random: Random) -> bytes:
    words = [random.choice(NAMES)]
    words += [random.choice((b"t", b"c", b"1", b"-1", b"", b"x" * 65, b"#ephemeral", _id(random)))
              for _ in range(random.randint(0, 4))]  # fmt: skip
    return b" ".join(words) + random.choice((b"\n", b"\r\n", b"", b" \n"))


COMMANDS: tuple[Callable[[Random], bytes], ...] = (
    lambda random: commands.publish(random.choice(TOPICS), _body(random)) * random.choice((1, 9)),
    lambda random: commands.publish_deferred(
        random.choice(TOPICS), random.choice((0, 1, 50, 3_600_000)), _body(random)
    ),
    _mpub,
    _wrong_mpub,
    _sized,
    _odd_line,
    lambda random: commands.identify(random.choice(IDENTITIES)),
    lambda random: commands.subscribe(random.choice(TOPICS), random.choice(CHANNELS)),
    lambda random: commands.ready(random.choice((0, 1, 10, 2500))),
    lambda random: commands.finish(_id(random)) * random.choice((1, 1, 20)),
    lambda random: commands.requeue(_id(random), random.choice((0, 10, 10**7))),
    lambda random: commands.give_up(_id(random), random.choice((0, 10)), random.choice(REASONS)),
    lambda random: commands.touch(_id(random)),
    lambda random: commands.nop() * random.choice((1, 5)),
    lambda random: commands.close(),
    lambda random: commands.auth("secret"),
)
# Without a subscription, and with one: most commands of the other kind end the connection.
WEIGHTS: tuple[float, ...] = (
    4, 2, 3, 0.5, 0.5, 0.7, 1, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 1, 0.1, 0.1
)  # fmt: skip
SUBSCRIBED_WEIGHTS: tuple[float, ...] = (
    4, 2, 3, 0.5, 0.5, 0.7, 0.2, 0.1, 4, 3, 3, 1, 3, 1, 0.5, 0.1
)  # fmt: skip


def tcp_case(seed: int, number: int) -> tuple[Random, bytes]:
    """What one connection sends, and the dice for how it does."""
    random = case_random(seed, number)
    begin = b""
    weights = WEIGHTS
    if random.random() < 0.6:
        weights = SUBSCRIBED_WEIGHTS
        if random.random() < 0.5:
            begin = commands.identify(random.choice(IDENTITIES))
        begin += commands.subscribe(random.choice(TOPICS), random.choice(CHANNELS))
    chosen = random.choices(COMMANDS, weights, k=random.randint(1, 8))
    said = b"".join(command(random) for command in chosen)
    if random.random() < 0.1:
        begin, said = b"", begin + said
    magic = MAGIC_V2 if random.random() < 0.97 else random.randbytes(4)
    if random.random() < 0.05:
        return random, mutated(random, magic + begin + said)
    return random, magic + begin + mutated(random, said)
