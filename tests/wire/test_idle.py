"""What a parser holds while its connection is idle: nothing of what it has handed out."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from trionsq.wire import commands, lines
from trionsq.wire.events import PublishMany
from trionsq.wire.lines import CommandLimits
from trionsq.wire.server import ServerParser
from trionsq.wire.states import MAGIC_V2

PARSERS = 60
MPUB = commands.publish_many("t", [bytes(1_000_000)] * 5)
HELD_NBYTES_MAX = 1_000_000


@pytest.fixture
def traced() -> Iterator[None]:
    """Allocations are traced while the test runs."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def parser_after(data: bytes, read_nbytes: int) -> ServerParser:
    """A parser that was given all of ``data`` and has handed out one MPUB."""
    parser = ServerParser(CommandLimits())
    published = 0
    for at in range(0, len(data), read_nbytes):
        parser.receive(data[at : at + read_nbytes])
        while (event := parser.next_event()) is not None:
            published += isinstance(event, PublishMany)
    assert published == 1
    return parser


@pytest.mark.parametrize("read_nbytes", [128 * 1024, 3_000_000])
@pytest.mark.parametrize(
    "rest",
    [b"", b"NO", b"PUB t\n\0\0\1\0x", MPUB[:100]],
    ids=["nothing", "a part of a line", "a part of a PUB", "a part of an MPUB"],
)
def test_sixty_idle_publishers_hold_nothing(rest: bytes, read_nbytes: int, traced: None) -> None:
    """Each has published 5 MB and sent nothing since, or the beginning of its next command."""
    data = MAGIC_V2 + MPUB + rest
    before = tracemalloc.get_traced_memory()[0]
    parsers = [parser_after(data, read_nbytes) for _ in range(PARSERS)]
    held = tracemalloc.get_traced_memory()[0] - before
    assert held < HELD_NBYTES_MAX
    assert {parser.buffered for parser in parsers} == {len(rest)} or rest == MPUB[:100]


def test_what_is_let_go_is_parsed_no_other_way() -> None:
    """The rest of a command that began behind a large one is found when it comes."""
    second = commands.publish_many("u", [b"one", b"two"])
    for cut in range(1, len(second)):
        parser = parser_after(MAGIC_V2 + MPUB + second[:cut], 10**7)
        parser.receive(second[cut:])
        bodies = None
        while (event := parser.next_event()) is not None:
            if isinstance(event, PublishMany):
                bodies = event.bodies.slice(0, event.bodies.count)
        assert bodies is not None
        assert list(bodies) == [b"one", b"two"]
        assert parser.buffered == 0


@pytest.mark.parametrize("command", ["PUB", "MPUB"])
def test_lines_that_are_kept_are_short(command: str) -> None:
    """A client can't fill memory by long lines; a short one is split once."""
    cache = {"PUB": lines._pub_topic_cached, "MPUB": lines._split_cached}[command]
    read = {"PUB": lines.pub_topic, "MPUB": lines.split_line}[command]
    name = f"t{command}"
    before = cache.cache_info()
    for number in range(1, 4):
        read(f"{command} {name}".encode())
        read(f"{command} {name} ".encode() + b"x" * 1000 * number)
    after = cache.cache_info()
    assert (after.hits, after.misses) == (before.hits + 2, before.misses + 1)
