"""Each check notices the one broken promise that it is there for, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.promises import checks
from tests.promises.allowance import Allowance
from tests.promises.ledger import Delivery, Ledger, Sent
from tests.promises.window import Window

WORK = ("orders", "work")
AUDIT = ("orders", "audit")
ID = b"0" * 16


@pytest.fixture
def allowance() -> Allowance:
    """Nothing may be lost."""
    return Allowance()


@pytest.fixture
def ledger() -> Ledger:
    """One message, acknowledged at 1 s, finished in both channels at 2 s."""
    ledger = Ledger()
    publish(ledger, b"one")
    come(ledger, b"one", answer="FIN")
    come(ledger, b"one", AUDIT, answer="FIN")
    return ledger


def publish(ledger: Ledger, body: bytes, delay_s: float = 0.0, acked_s: float = 1.0) -> None:
    """n0 acknowledged a message at once."""
    ledger.sent[body] = Sent("orders", acked_s, delay_s, "n0", acked_s)


def come(
    ledger: Ledger,
    body: bytes,
    channel: tuple[str, str] = WORK,
    *,
    at_s: float = 2.0,
    attempts: int = 1,
    answer: str = "",
    delay_s: float = 0.0,
    taken: bool = False,
) -> None:
    """n0 delivered a message, which was answered at once, and nsqd took that 10 ms later."""
    delivery = Delivery(at_s, "n0", ID, attempts, "consumer", answer, at_s, delay_s)
    delivery.taken_s = at_s + 0.01 if taken else 0.0
    ledger.deliver(*channel, body, delivery)


def all_broken(ledger: Ledger, allowance: Allowance) -> Iterator[str]:
    """The names of the checks that find something; both channels are there from the beginning."""
    counts: Counter[str] = Counter()
    found = {
        "lost": checks.lost(ledger, allowance, (WORK, AUDIT), counts),
        "invented": checks.invented(ledger, allowance, counts),
        "early": checks.came_early(ledger, allowance),
        "early again": checks.came_early_again(ledger, allowance),
        "attempts": checks.attempts_broken(ledger, allowance, (WORK,), (50.0,)),
        "finished again": checks.finished_again(ledger, allowance),
        "older": checks.older_than_channel(ledger, {WORK: 0.5}),
    }
    for name, texts in found.items():
        yield from (name for _ in texts)


def test_kept_promises(ledger: Ledger, allowance: Allowance) -> None:
    """A run in which all is well breaks nothing."""
    assert list(all_broken(ledger, allowance)) == []
    assert list(checks.repeated(ledger, (WORK, AUDIT))) == []


def test_a_message_that_one_channel_never_got(ledger: Ledger, allowance: Allowance) -> None:
    """Each channel is owed each acknowledged message."""
    publish(ledger, b"two")
    come(ledger, b"two", answer="FIN")
    assert list(all_broken(ledger, allowance)) == ["lost"]


def test_a_message_that_was_delivered_and_never_finished(
    ledger: Ledger, allowance: Allowance
) -> None:
    """A message without a FIN has to come again, however often it came."""
    publish(ledger, b"two")
    come(ledger, b"two", answer="FIN")
    come(ledger, b"two", AUDIT)
    come(ledger, b"two", AUDIT, attempts=2, answer="REQ")
    assert list(all_broken(ledger, allowance)) == ["lost"]


def test_a_message_that_nobody_acknowledged(ledger: Ledger, allowance: Allowance) -> None:
    """A message without its OK may come or not."""
    ledger.sent[b"two"] = Sent("orders", 1.0)
    assert list(all_broken(ledger, allowance)) == []
    come(ledger, b"two", answer="FIN")
    assert list(all_broken(ledger, allowance)) == []


@pytest.mark.parametrize(("at_topic", "at_channel", "is_broken"), [(1, 1, 0), (1, 0, 1), (0, 1, 1)])
def test_a_kill_loses_what_was_in_memory_and_no_more(
    ledger: Ledger, allowance: Allowance, at_topic: int, at_channel: int, is_broken: int
) -> None:
    """Two lost messages need two in memory: at the topic, or in this channel, at this nsqd."""
    publish(ledger, b"two")
    publish(ledger, b"three")
    for body in (b"two", b"three"):
        come(ledger, body, answer="FIN")
    allowance.note_memory("n0", "orders", "", at_topic)
    allowance.note_memory("n0", "orders", "audit", at_channel)
    allowance.note_memory("n0", "orders", "work", 10)
    allowance.note_memory("n1", "orders", "audit", 10)
    assert list(all_broken(ledger, allowance)) == ["lost"] * is_broken


def test_late_messages_are_lost_beside_those_in_memory(
    ledger: Ledger, allowance: Allowance
) -> None:
    """What was acknowledged after the count may be lost; what was acknowledged before may not."""
    publish(ledger, b"two", acked_s=10.5)
    allowance.note_late("n0", 10.0, 11.0)
    assert list(all_broken(ledger, allowance)) == []
    publish(ledger, b"three", acked_s=9.5)
    assert list(all_broken(ledger, allowance)) == ["lost", "lost"]


@pytest.mark.parametrize(("when_due", "broken"), [(True, 0), (False, 2)])
def test_a_deferred_message_is_late_when_it_is_due(
    ledger: Ledger, allowance: Allowance, when_due: bool, broken: int
) -> None:
    """What is written when it is due may go with the power; a kill costs what was in memory."""
    publish(ledger, b"two", delay_s=9.5)
    allowance.note_late("n0", 10.0, 11.0, when_due=when_due)
    assert list(all_broken(ledger, allowance)) == ["lost"] * broken


def test_damaged_files_may_lose_and_invent(ledger: Ledger, allowance: Allowance) -> None:
    """Where files were damaged nothing is owed."""
    publish(ledger, b"two")
    come(ledger, b"twO")
    assert set(all_broken(ledger, allowance)) == {"lost", "invented"}
    allowance.damaged.add("n0")
    assert list(all_broken(ledger, allowance)) == []


@pytest.mark.parametrize("body", [b"", b"on", b"one ", b"two"])
def test_a_body_that_nobody_published(ledger: Ledger, allowance: Allowance, body: bytes) -> None:
    """An unknown or damaged body is an invention, also after a kill."""
    come(ledger, body)
    allowance.killed.add("n0")
    assert list(all_broken(ledger, allowance)) == ["invented"]


def test_a_message_of_another_topic(ledger: Ledger, allowance: Allowance) -> None:
    """A message belongs to the channels of its own topic."""
    come(ledger, b"one", ("events", "work"))
    assert list(all_broken(ledger, allowance)) == ["invented"]


@pytest.mark.parametrize(("at_s", "broken"), [(3.9, ["early", "early"]), (4.0, [])])
def test_a_deferred_message_that_came_early(
    ledger: Ledger, allowance: Allowance, at_s: float, broken: list[str]
) -> None:
    """A message deferred by 3 s at 1 s is due at 4 s, on each channel, also after a kill."""
    publish(ledger, b"two", delay_s=3.0)
    for channel in (WORK, AUDIT):
        come(ledger, b"two", channel, at_s=at_s, answer="FIN")
    allowance.killed.add("n0")
    assert list(all_broken(ledger, allowance)) == broken
    allowance.clocks_jumped.add("n0")
    assert list(all_broken(ledger, allowance)) == []


@pytest.mark.parametrize(("from_s", "broken"), [(0.5, []), (1.5, ["early", "early"])])
def test_a_due_time_that_was_not_written_yet(
    ledger: Ledger, allowance: Allowance, from_s: float, broken: list[str]
) -> None:
    """What was acknowledged just before a kill may come at once; an older message may not."""
    publish(ledger, b"two", delay_s=3.0)
    for channel in (WORK, AUDIT):
        come(ledger, b"two", channel, answer="FIN")
    allowance.note_forgetful("n0", from_s, 2.0)
    assert list(all_broken(ledger, allowance)) == broken


@pytest.mark.parametrize(("at_s", "broken"), [(6.9, ["early again"]), (7.0, [])])
def test_a_requeued_message_that_came_early(
    ledger: Ledger, allowance: Allowance, at_s: float, broken: list[str]
) -> None:
    """A message requeued at 2 s by 5 s is due at 7 s."""
    publish(ledger, b"two")
    come(ledger, b"two", AUDIT, answer="FIN")
    come(ledger, b"two", answer="REQ", delay_s=5.0, taken=True)
    come(ledger, b"two", at_s=at_s, attempts=2, answer="FIN")
    assert list(all_broken(ledger, allowance)) == broken


def test_a_requeue_that_nobody_confirmed(ledger: Ledger, allowance: Allowance) -> None:
    """A REQ of unknown fate, or before a kill, defers nothing for sure."""
    publish(ledger, b"two")
    come(ledger, b"two", AUDIT, answer="FIN")
    come(ledger, b"two", answer="REQ", delay_s=5.0)
    come(ledger, b"two", at_s=3.0, attempts=2, answer="REQ", delay_s=5.0, taken=True)
    come(ledger, b"two", at_s=4.0, attempts=3, answer="FIN")
    assert list(all_broken(ledger, allowance)) == ["early again"]
    allowance.killed.add("n0")
    assert list(all_broken(ledger, allowance)) == []


@pytest.mark.parametrize("attempts", [(0, 1), (2,), (1, 1), (1, 3)])
def test_attempts_that_are_wrong(
    ledger: Ledger, allowance: Allowance, attempts: tuple[int, ...]
) -> None:
    """Attempts are 1, 2, 3 and so on for who sees every delivery."""
    publish(ledger, b"two")
    come(ledger, b"two", AUDIT, answer="FIN")
    for number in attempts:
        come(ledger, b"two", attempts=number, answer="FIN")
    assert set(all_broken(ledger, allowance)) == {"attempts"}


def test_attempts_repeat_or_are_left_out_where_deliveries_are_lost(
    ledger: Ledger, allowance: Allowance
) -> None:
    """Who does not see every delivery misses numbers; only a kill makes nsqd forget them."""
    come(ledger, b"one", AUDIT, attempts=4)
    assert list(all_broken(ledger, allowance)) == []
    come(ledger, b"one", AUDIT, attempts=4)
    assert list(all_broken(ledger, allowance)) == ["attempts"]
    allowance.killed.add("n0")
    assert list(all_broken(ledger, allowance)) == []


@pytest.mark.parametrize(("attempts", "broken"), [(3, ["attempts"]), (5, [])])
def test_attempts_go_on_over_a_restart(
    ledger: Ledger, allowance: Allowance, attempts: int, broken: list[str]
) -> None:
    """What comes after the restart, here at 50 s, has more attempts than anything before."""
    come(ledger, b"one", AUDIT, attempts=4)
    come(ledger, b"one", AUDIT, at_s=51.0, attempts=attempts)
    assert list(all_broken(ledger, allowance)) == broken


def test_attempts_rise_on_one_connection(ledger: Ledger, allowance: Allowance) -> None:
    """A lower number later is a message that waited elsewhere, or it is wrong."""
    come(ledger, b"one", AUDIT, attempts=4)
    come(ledger, b"one", AUDIT, attempts=3)
    assert list(all_broken(ledger, allowance)) == []
    assert len(list(checks.attempts_broken(ledger, allowance, in_order=True))) == 1
    ledger.delivered[AUDIT][b"one"][-1].consumer = "another"
    assert list(checks.attempts_broken(ledger, allowance, in_order=True)) == []


def test_a_finished_message_that_came_again(ledger: Ledger, allowance: Allowance) -> None:
    """A FIN that nsqd confirmed is the end of a message, but for a kill."""
    come(ledger, b"one", at_s=3.0, attempts=2, answer="FIN", taken=True)
    assert list(all_broken(ledger, allowance)) == []
    come(ledger, b"one", at_s=4.0, attempts=3)
    assert list(all_broken(ledger, allowance)) == ["finished again"]
    allowance.killed.add("n0")
    assert list(all_broken(ledger, allowance)) == []


def test_a_delivery_that_was_on_its_way_is_not_again(ledger: Ledger, allowance: Allowance) -> None:
    """What nsqd sent before it took the FIN of a later delivery may be read after that."""
    come(ledger, b"one", at_s=3.0, attempts=3, answer="FIN", taken=True)
    come(ledger, b"one", at_s=4.0, attempts=2)
    assert list(all_broken(ledger, allowance)) == []


@pytest.mark.parametrize(("delay_s", "broken"), [(0.0, 1), (1.0, 0)])
def test_a_message_older_than_its_channel(ledger: Ledger, delay_s: float, broken: int) -> None:
    """A channel made at 1.5 s gets nothing that was acknowledged, and due, before."""
    publish(ledger, b"two", delay_s)
    come(ledger, b"two", ("orders", "late"), at_s=3.0)
    made_s = {("orders", "late"): 1.5}
    assert len(list(checks.older_than_channel(ledger, made_s))) == broken
    assert list(checks.older_than_channel(ledger, made_s, slack_s=1.0)) == []


def test_a_message_that_came_twice(ledger: Ledger) -> None:
    """Where nothing goes wrong a second delivery is one too many."""
    come(ledger, b"one", attempts=2)
    assert len(list(checks.repeated(ledger, (WORK, AUDIT)))) == 1


# In flight


def test_more_in_flight_than_ready() -> None:
    """One message more than RDY, none of them answered, is one too many."""
    window = Window(forget_s=10.0)
    window.set_ready(2)
    assert not window.receive(b"1", 0.0)
    assert not window.receive(b"2", 0.0)
    window.answer(b"1")
    assert not window.receive(b"3", 0.0)
    assert window.receive(b"4", 0.0)


def test_a_lower_ready_counts_when_it_is_confirmed() -> None:
    """Until nsqd has read the lower RDY it may send as much as before."""
    window = Window(forget_s=10.0)
    window.set_ready(2)
    window.set_ready(1)
    window.confirm_ready()
    window.receive(b"1", 0.0)
    assert not window.receive(b"2", 0.0)
    window.answer(b"1")
    window.confirm_ready()
    assert window.receive(b"3", 0.0)


def test_what_timed_out_is_in_flight_no_more() -> None:
    """A message that came too long ago is not counted; one that comes again counts once."""
    window = Window(forget_s=1.0)
    window.set_ready(1)
    window.receive(b"1", 0.0)
    assert not window.receive(b"1", 0.5)
    assert window.receive(b"2", 1.5)
    assert not window.receive(b"3", 2.6)
