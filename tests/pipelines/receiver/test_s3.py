"""From a real nsqd into a log in S3, while the store is killed, answers get lost and receivers
replace each other: each message is once in the log."""

import time
from pathlib import Path

from pipelines.receiver import Receiver
from pipelines.wal import LogView, Wal, read_segment
from tests.pipelines.receiver.drive import channel_of, config, publish, until
from tests.pipelines.wal.s3 import s3_server
from tests.soak import in_short_soak
from trionsq.testing import OpenBroker

URL = "s3://bucket/logs/a"
MESSAGES = 20_000
PART = 5000


@in_short_soak
def test_a_killed_store_and_a_replaced_receiver_lose_and_double_nothing(
    nsqd: OpenBroker, tmp_path: Path
) -> None:
    """The former receiver is not told: it finds out at its next segment, and nothing of it is
    finished that is not in the log."""
    receivers: list[Receiver] = []

    def replace() -> None:
        options = {"segment_messages": 200, "max_in_flight": 1000, "msg_timeout_ms": 2000}
        receivers.append(Receiver(config(nsqd.tcp_address, **options), Wal.open(URL)))
        receivers[-1].start()

    def lose_answers() -> None:
        server.loses_answers = True
        time.sleep(1)
        server.loses_answers = False

    def restart() -> None:
        server.kill()
        server.start()

    with s3_server(tmp_path) as server:
        replace()
        for first, disturb in zip(
            range(0, MESSAGES, PART), (replace, restart, lose_answers, replace), strict=True
        ):
            publish(nsqd.http_address, range(first, first + PART))
            until(lambda first=first: receivers[-1].end > first, receivers[-1])  # type: ignore[misc]
            disturb()
        until(lambda: receivers[-1].end >= MESSAGES, receivers[-1])
        until(lambda: is_empty(nsqd), receivers[-1])
        view = LogView.open(URL)
        found: list[int] = []
        for ref in view.segments(0, view.end):
            for batch in read_segment(ref, ref.first, ref.end):
                found += [int(body) for body in batch.column("body").to_pylist()]
        for each in receivers:
            each.stop()
    assert sorted(found) == list(range(MESSAGES))


def is_empty(nsqd: OpenBroker) -> bool:
    channel = channel_of(nsqd.http_address)
    return not channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
