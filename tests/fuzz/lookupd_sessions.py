"""What nsqds say to nsqlookupd, right and wrong, straight into its sessions."""

from __future__ import annotations

import json
import struct
from collections import Counter
from random import Random
from typing import Final

from lookupd.registry import Registry
from lookupd.session import MAGIC, MAX_BODY_BYTES, MAX_LINE_BYTES, Session
from tests.fuzz.mutate import INT32S, case_random, cut, mutated
from tests.fuzz.parser import FuzzError
from tests.fuzz.watch import no_traces

__all__ = ["fuzz_lookupd"]

_IDENTITY: Final = b'{"version":"test"}'
_ANNOUNCED: Final = {
    "broadcast_address": "10.0.0.1",
    "hostname": "host1",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}
_ODD: Final[tuple[object, ...]] = (None, "", "x" * 5000, -1, 2**70, 1.5, True, [], {}, "\ud800")
_NAMES: Final = (b"t", b"u", b"v.w-x_y", b"e#ephemeral", b"", b"bad name", b"x" * 65, b"\xff")


def _identify(random: Random) -> bytes:
    announced: dict[str, object] = dict(_ANNOUNCED)
    if random.random() < 0.4:
        announced[random.choice(list(announced))] = random.choice(_ODD)
    body = json.dumps(announced).encode()
    size = random.choice(INT32S) if random.random() < 0.1 else len(body)
    return b"IDENTIFY\n" + struct.pack(">i", size) + body


def _line(random: Random) -> bytes:
    name = random.choice((b"PING", b"REGISTER", b"REGISTER", b"UNREGISTER", b"NONSENSE", b""))
    words = [name, *random.choices(_NAMES, k=random.choice((0, 1, 1, 2, 2, 3)))]
    return b" ".join(words) + random.choice((b"\n", b"\n", b"\r\n", b""))


def _case(seed: int, number: int) -> tuple[Random, bytes]:
    random = case_random(seed, number)
    said = MAGIC if random.random() < 0.97 else random.randbytes(4)
    if random.random() < 0.8:
        said += _identify(random)
    for _ in range(random.randint(1, 8)):
        said += _line(random) if random.random() < 0.9 else _identify(random)
    return random, mutated(random, said) if random.random() < 0.6 else said


def _answered(pieces: list[bytes]) -> tuple[bytes, object]:
    """What a session answers, and what is registered while it lasts."""
    registry = Registry(10**9, 10**9)
    session = Session(registry, "10.0.0.9:1", _IDENTITY)
    answers = b""
    for number, piece in enumerate(pieces):
        if session.ended:
            break
        answers += session.receive(piece, number)
        assert len(session._buffer) <= MAX_LINE_BYTES + MAX_BODY_BYTES
    if not session.ended:
        answers += session.end_of_input()
    held = [found[0] for found in registry.everything() if found is not None]
    session.close()
    assert not any(registry.everything()), "its producer is still there"
    return answers, held


def fuzz_lookupd(count: int, seed: int) -> Counter[str]:
    """Run ``count`` sessions; how they ended.

    Raises:
        FuzzError: with the seed and number of the case.
    """
    ends: Counter[str] = Counter()
    for number in range(count):
        random, data = _case(seed, number)
        try:
            with no_traces():
                answers, held = _answered([data])
                again = _answered(cut(random, data))
            assert again == (answers, held), "cut, it means something else"
        except Exception as error:
            raise FuzzError(f"seed {seed}, case {number}: {error!r}; {data[:2000]!r}") from error
        code = answers.rpartition(b"E_")[2].split(b" ")[0].decode("latin-1")[:20]
        ends[f"E_{code}" if b"E_" in answers else "no error"] += 1
    return ends
