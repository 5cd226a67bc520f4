"""The blocking client in gunicorn's workers: forked processes, ended by SIGTERM amid requests."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from functools import partial

import pytest

from tests.client.worlds import until
from tests.processes import free_address, split_address
from tests.soak import by_level, in_short_soak, more_in_soak
from trionsq.client import Config
from trionsq.client.blocking import Consumer, Message
from trionsq.testing import OpenBroker, broker_in_thread

COUNT = by_level(test=2_000, short=10_000, full=100_000)
A_REQUEST = by_level(test=20, short=20, full=50)
SENDERS = 8
LIMIT_S = 600


class Senders:
    """Threads that send requests, once two workers answer, each until it is answered with 200.

    Every fourth waits for no OK of nsqd: the end of the worker has to.

    Attributes:
        confirmed: numbers whose request was answered with 200.
        repeated: those of a request that was sent again.
        workers: ids of the processes that answered.
    """

    def __init__(self, address: str) -> None:
        self.confirmed: set[int] = set()
        self.repeated: set[int] = set()
        self.workers: set[bytes] = set()
        self._host, self._port = split_address(address)
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(SENDERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def is_up(self) -> bool:
        """Whether a worker answers."""
        return self._is_answered("/ping")

    def _two_workers_answer(self) -> bool:
        return self.is_up() and len(self.workers) > 1

    def _send(self, sender: int) -> None:
        until(self._two_workers_answer)
        path = "/pub?" if sender % 4 else "/begin?"
        for first in range(sender * A_REQUEST, COUNT, SENDERS * A_REQUEST):
            numbers = range(first, min(first + A_REQUEST, COUNT))
            request = path + ",".join(map(str, numbers))
            if not self._is_answered(request):
                self.repeated.update(numbers)
                until(partial(self._is_answered, request))
            self.confirmed.update(numbers)

    def _is_answered(self, path: str) -> bool:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            worker = answer.read()
        except (OSError, http.client.HTTPException):
            return False  # gunicorn has ended
        finally:
            connection.close()
        if answer.status == 200:
            self.workers.add(worker)
        return answer.status == 200


def handle_all(nsqd: OpenBroker) -> Counter[int]:
    """How often each number is at nsqd."""
    found = Counter[int]()

    def handle(message: Message) -> None:
        found[int(message.body)] += 1
        if found.total() == total:
            consumer.stop()

    total = nsqd.broker.topic("web").core.message_count
    consumer = Consumer(
        "web", "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=Config(max_in_flight=1000)
    )
    consumer.run(handle, handle_signals=False)
    return found


@pytest.mark.time_limit(LIMIT_S)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--preload"], id="preload", marks=more_in_soak),
        pytest.param(["--threads=4"], id="threads", marks=in_short_soak),
    ],
)
def test_a_request_that_was_answered_has_published(options: list[str]) -> None:
    """4 workers publish, SIGTERM ends gunicorn in the middle, and another one goes on: what was
    confirmed is at nsqd, once unless its request was sent again, and gunicorn ends by itself."""
    address = free_address()
    command = [sys.executable, "-m", "gunicorn", "--workers=4", f"--bind={address}", *options]
    # A machine that is slow or paused is no reason to kill a worker.
    command.append("--timeout=0")
    command += ["--graceful-timeout=30", "--log-level=warning", "tests.client.gunicorn_app:app"]
    senders = Senders(address)
    with broker_in_thread(mem_queue_size=2 * COUNT) as nsqd:
        environment = {**os.environ, "NSQD": nsqd.tcp_address}
        for target in (COUNT // 2, COUNT):
            with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as gunicorn:
                if target < COUNT:
                    senders.start()
                # Without a worker its master may not handle signals yet.
                until(senders.is_up, LIMIT_S)
                until(lambda: len(senders.confirmed) >= target, LIMIT_S)  # noqa: B023
                gunicorn.send_signal(signal.SIGTERM)
                _, complaints = gunicorn.communicate(timeout=60)
            assert gunicorn.returncode == 0, complaints
        senders.join()
        found = handle_all(nsqd)
    doubled = {number for number, count in found.items() if count > 1}
    print(
        f"{len(senders.confirmed)} confirmed by {len(senders.workers)} workers, "
        f"{len(found)} found, {len(senders.repeated)} sent again, {len(doubled)} doubled"
    )
    assert len(senders.workers) > 2
    assert found.keys() == senders.confirmed == set(range(COUNT))
    assert doubled <= senders.repeated
