"""A parser that pauses, so that one client's commands do not take the time of all others."""

from trionsq.wire.events import Touch
from trionsq.wire.lines import CommandLimits
from trionsq.wire.server import ServerParser
from trionsq.wire.states import MAGIC_V2, ConnectionState

LIMITS = CommandLimits(max_msg_size=100, max_body_size=1000)
TOUCH = b"TOUCH 0123456789abcdef\n"


def _subscribed(data: bytes) -> ServerParser:
    parser = ServerParser(LIMITS)
    parser.receive(MAGIC_V2 + b"SUB t c\n" + data)
    assert parser.next_event() is not None
    assert parser.state is ConnectionState.SUBSCRIBED
    return parser


def _events(parser: ServerParser) -> int:
    count = 0
    while (event := parser.next_event()) is not None:
        assert isinstance(event, Touch)
        count += 1
    return count


def test_it_pauses_after_so_many_commands_and_goes_on() -> None:
    """Nothing is lost in between, and a pause is told from a lack of input."""
    parser = _subscribed(TOUCH * 25)
    seen = []
    while True:
        parser.pause_after(10)
        seen.append(_events(parser))
        if not parser.paused:
            break
    assert seen == [10, 10, 5]
    assert parser.buffered == 0


def test_a_command_may_count_as_several() -> None:
    """What took long brings the pause nearer; a pause that is due stays one."""
    parser = _subscribed(TOUCH * 20)
    parser.pause_after(10)
    assert parser.next_event() is not None
    parser.pause_sooner(5)
    assert _events(parser) == 4
    parser.pause_sooner(5)
    assert parser.paused
    parser.pause_after(15)
    assert _events(parser) == 15


def test_commands_without_an_event_count() -> None:
    """A flood of what brings no event pauses too."""
    parser = _subscribed(b"NOP x\n" * 100 + TOUCH)
    parser.pause_after(99)
    assert _events(parser) == 0
    assert parser.paused
    parser.pause_after(99)
    assert _events(parser) == 1
    assert not parser.paused


def test_commands_count_when_they_are_complete() -> None:
    """A client that has said nothing has sent none: its silence counts from the connection on."""
    parser = ServerParser(LIMITS)
    counts = [parser.commands]
    for part in (b"  V2", b"SUB top", b"ic ch\n", TOUCH * 3):
        parser.receive(part)
        while parser.next_event() is not None:
            pass
        counts.append(parser.commands)
    assert counts == [0, 0, 0, 1, 4]


def test_a_flood_of_nops_is_a_run() -> None:
    """Some thousand of them count as a few commands; what comes after them is acted on."""
    parser = _subscribed(b"NOP\n" * 10_000 + TOUCH)
    before = parser.commands
    assert _events(parser) == 1
    assert parser.commands - before < 100
