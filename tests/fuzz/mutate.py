"""Damage of all kinds to bytes that were right. Everything is drawn from a seeded `Random`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from random import Random

INT32S = (-(2**31), -1, 0, 1, 2, 4, 255, 2**16, 1_048_576, 1_048_577, 5_242_881, 2**31 - 1)
NUMBERS = (b"-1", b"0", b"1", b"00", b"2500", b"2501", b"4294967296", b"9" * 30, b"1e9", b"0x10")
ODD = (b"\n", b"\r\n", b" ", b"\0", b"\xff", b":", b"%", b"%zz", b";", b"  V2", b"\r", b"\t")

Mutation = Callable[[Random, bytes], bytes]


def case_random(seed: int, number: int) -> Random:
    """The dice of one case: the same for the same seed and number."""
    return Random(seed * 10_000_019 + number)


def _place(random: Random, data: bytes) -> int:
    return random.randrange(len(data) + 1)


def truncated(random: Random, data: bytes) -> bytes:
    return data[: _place(random, data)]


def beheaded(random: Random, data: bytes) -> bytes:
    return data[_place(random, data) :]


def bits_flipped(random: Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(random.randint(1, 8)):
        if damaged:
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    return bytes(damaged)


def size_replaced(random: Random, data: bytes) -> bytes:
    """Four bytes that may be a size become another one."""
    at = _place(random, data)
    zeros = data.find(b"\0\0", at)  # where a small size is likely
    at = zeros if zeros >= 0 else at
    return data[:at] + struct.pack(">i", random.choice(INT32S)) + data[at + 4 :]


def number_replaced(random: Random, data: bytes) -> bytes:
    """A digit becomes a whole number, of any size."""
    digits = [at for at, byte in enumerate(data[:2000]) if 0x30 <= byte <= 0x39]
    if not digits:
        return data
    at = random.choice(digits)
    return data[:at] + random.choice(NUMBERS) + data[at + 1 :]


def noise_inserted(random: Random, data: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + random.randbytes(random.randint(1, 40)) + data[at:]


def odd_inserted(random: Random, data: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + random.choice(ODD) * random.choice((1, 1, 1, 2, 500)) + data[at:]


def part_repeated(random: Random, data: bytes) -> bytes:
    start, end = sorted((_place(random, data), _place(random, data)))
    return data[:end] + data[start:end] * random.choice((1, 2, 50 if end - start < 200 else 1))


def part_removed(random: Random, data: bytes) -> bytes:
    start, end = sorted((_place(random, data), _place(random, data)))
    return data[:start] + data[min(end, start + 20) :]


def parts_swapped(random: Random, data: bytes) -> bytes:
    at = _place(random, data)
    return data[at:] + data[:at]


def replaced_by_noise(random: Random, data: bytes) -> bytes:
    return random.randbytes(random.randint(0, 300))


def overlong(random: Random, data: bytes) -> bytes:
    """A line or value that is longer than any buffer."""
    at = _place(random, data)
    return data[:at] + bytes([random.choice(b"aA0 /")]) * random.randint(1000, 70_000) + data[at:]


MUTATIONS: tuple[Mutation, ...] = (
    truncated,
    beheaded,
    bits_flipped,
    size_replaced,
    number_replaced,
    noise_inserted,
    odd_inserted,
    part_repeated,
    part_removed,
    parts_swapped,
    replaced_by_noise,
    overlong,
)
# The costly ones are rare.
WEIGHTS = (4, 2, 6, 6, 4, 4, 4, 2, 4, 2, 2, 0.2)


def mutated(random: Random, data: bytes) -> bytes:
    """None to three mutations."""
    for mutation in random.choices(MUTATIONS, WEIGHTS, k=random.choice((0, 1, 1, 1, 2, 3))):
        data = mutation(random, data)
    return data


def cut(random: Random, data: bytes) -> list[bytes]:
    """The pieces in which the data arrive: whole, in two or some, or the first bytes singly."""
    way = random.randrange(4)
    if way == 0 or len(data) < 2:
        return [data] if data else []
    if way == 3:
        singles = min(len(data), 60)
        pieces = [data[at : at + 1] for at in range(singles)]
        return [*pieces, data[singles:]] if singles < len(data) else pieces
    places = sorted(random.randrange(1, len(data)) for _ in range(1 if way == 1 else 5))
    bounds = [0, *places, len(data)]
    pieces = [data[a:b] for a, b in pairwise(bounds)]
    return [piece for piece in pieces if piece]
