"""The golden transcripts against a real nsqd process on real sockets.

TRIONSQ_TEST_NSQD=/path/to/nsqd replays all of them, whatever we have built, against that one.
"""

from __future__ import annotations

from tests.golden.jobs import Job, OutcomesByCutting


def test_tcp_conversation(tcp_job: Job, process_outcomes: OutcomesByCutting) -> None:
    """A client that speaks V2 is answered as nsqd v1.3.0 answers, however its bytes are cut."""
    process_outcomes.check(tcp_job)


def test_http_conversation(http_job: Job, process_outcomes: OutcomesByCutting) -> None:
    """An HTTP client is answered as nsqd v1.3.0 answers, headers and key order included."""
    process_outcomes.check(http_job)
