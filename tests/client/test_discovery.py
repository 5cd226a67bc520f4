"""Polling nsqlookupd (trionsq.client.discovery). Spec: client, section 3."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from tests.client.upgraded import authority
from trionsq import httpget
from trionsq.client import Config, DiscoveryError, LastLookupdError
from trionsq.client.discovery import Discovery, addresses_of, lookup_url, topics_of

NEW = {"x-nsq-content-type": "nsq; version=1.0"}
ANSWER = {"channels": [], "producers": [{"broadcast_address": "a", "tcp_port": 4150}]}


def answer(content: object, status: int = 200, headers: Mapping[str, str] = NEW) -> httpget.Answer:
    """An answer with a JSON body."""
    return httpget.Answer(status, headers, json.dumps(content).encode())


class Lookupds:
    """Answers by URL; any other URL cannot be reached."""

    def __init__(self, answers: Mapping[str, httpget.Answer]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.headers: Mapping[str, str] = {}
        self.ssl_context: ssl.SSLContext | None = None

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        request_timeout_s: float,
        *,
        ssl_context: ssl.SSLContext | None,
    ) -> httpget.Answer:
        self.asked.append(url)
        self.headers = headers
        self.ssl_context = ssl_context
        if url not in self.answers:
            raise httpget.GetConnectError("refused")
        return self.answers[url]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("a:4161", "http://a:4161/lookup?topic=t%23ephemeral"),
        ("[::1]:4161", "http://[::1]:4161/lookup?topic=t%23ephemeral"),
        ("https://a:1", "https://a:1/lookup?topic=t%23ephemeral"),
        ("http://a:1/", "http://a:1/lookup?topic=t%23ephemeral"),
        ("http://a:1/other?x=y", "http://a:1/other?x=y&topic=t%23ephemeral"),
    ],
)
def test_every_form_of_address(address: str, expected: str) -> None:
    """The path defaults to /lookup, and the topic is added."""
    assert lookup_url(address, "t#ephemeral") == expected


@pytest.mark.parametrize("address", ["a", "http://a", "ftp://a:1", "a:", "a:x", ""])
def test_an_address_without_a_port_is_none(address: str) -> None:
    """An address without a port raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011
        lookup_url(address, "t")


@pytest.mark.parametrize(
    "given",
    [
        answer(ANSWER),
        answer({"status_code": 200, "status_txt": "OK", "data": ANSWER}, headers={}),
    ],
)
def test_both_forms_of_answers_are_read(given: httpget.Answer) -> None:
    """The present form, and the wrapped one of before 1.0."""
    assert addresses_of(given) == ["a:4150"]


def test_ipv6_addresses_get_brackets() -> None:
    """Brackets separate the address from the port."""
    producer = {"broadcast_address": "::1", "tcp_port": 4150}
    assert addresses_of(answer({"producers": [producer]})) == ["[::1]:4150"]


@pytest.mark.parametrize(
    "given",
    [
        answer({"message": "TOPIC_NOT_FOUND"}, status=404),
        answer({"status_code": 500, "status_txt": "X", "data": None}, headers={}),
        answer([]),
        answer({}),
        answer({"producers": None}),
        answer({"producers": [{"broadcast_address": 1, "tcp_port": 2}]}),
        answer(None, headers={}),
        httpget.Answer(200, NEW, b"<html>"),
        httpget.Answer(200, NEW, b"\xff"),
        httpget.Answer(200, NEW, b"[" * 1_000_000),
        httpget.Answer(200, NEW, b'{"x":' + b"[" * 1_000_000),
        httpget.Answer(200, NEW, b'{"producers":' + b"[" * 1_000_000),
        answer({"producers": [{"broadcast_address": "a", "tcp_port": 1}] * 10_001}),
        answer({"producers": [], "padding": "x" * (2 << 20)}),
    ],
)
def test_nonsense_and_errors_are_discovery_errors(given: httpget.Answer) -> None:
    """Whatever nsqlookupd answers, the only error is DiscoveryError."""
    with pytest.raises(DiscoveryError):
        addresses_of(given)


def test_a_large_answer_is_read() -> None:
    """Up to the limit of 10,000 nsqds."""
    producers = [{"broadcast_address": "a", "tcp_port": port} for port in range(10_000)]
    assert len(addresses_of(answer({"producers": producers}))) == 10_000


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        (answer({"topics": ["t", "u"]}), ["t", "u"]),
        (answer({"topics": []}), []),
        (answer({"status_code": 200, "data": {"topics": ["t"]}}, headers={}), ["t"]),
    ],
)
def test_topics_are_read_from_both_forms(given: httpget.Answer, topics: list[str]) -> None:
    """The present form, and the wrapped one of before 1.0."""
    assert topics_of(given) == topics


@pytest.mark.parametrize(
    "given",
    [
        answer({"topics": ["t"]}, status=500),
        answer({}),
        answer({"topics": [1]}),
        httpget.Answer(200, NEW, b'{"topics":["\\ud800"]}'),
        httpget.Answer(200, NEW, b"[" * 1_000_000),
        answer({"topics": ["x" * (2 << 20)]}),
    ],
)
def test_nonsense_about_topics_is_a_discovery_error(given: httpget.Answer) -> None:
    """Also for a name that is no string, and JSON nested too deeply."""
    with pytest.raises(DiscoveryError):
        topics_of(given)


async def test_they_are_asked_in_turn() -> None:
    """Each poll asks the next nsqlookupd."""
    lookupds = Lookupds({lookup_url(f"{host}:1", "t"): answer(ANSWER) for host in "ab"})
    discovery = Discovery("t", Config(), lookupds.get)
    for host in "ab":
        discovery.add(f"{host}:1")
    for _ in range(3):
        assert await discovery.poll() == ["a:4150"]
    assert [url[7] for url in lookupds.asked] == ["a", "b", "a"]
    assert lookupds.headers == {"Accept": "application/vnd.nsq; version=1.0"}


async def test_three_are_tried() -> None:
    """After an error the next one is asked, three at most; the next poll continues from there."""
    lookupds = Lookupds({lookup_url("d:1", "t"): answer(ANSWER)})
    discovery = Discovery("t", Config(), lookupds.get)
    for host in "abcd":
        discovery.add(f"{host}:1")
    with pytest.raises(DiscoveryError, match="refused"):
        await discovery.poll()
    assert [url[7] for url in lookupds.asked] == ["a", "b", "c"]
    assert await discovery.poll() == ["a:4150"]


async def test_a_failed_poll_says_what_each_of_them_said() -> None:
    """Its URL with the error, whether it was not reached or answered nonsense."""
    lookupds = Lookupds({lookup_url("b:1", "t"): answer({"message": "X"}, status=500)})
    discovery = Discovery("t", Config(), lookupds.get)
    for host in "ab":
        discovery.add(f"{host}:1")
    with pytest.raises(DiscoveryError) as caught:
        await discovery.poll()
    text = "http://a:1/lookup?topic=t: refused; http://b:1/lookup?topic=t: answered 500 X"
    assert str(caught.value) == text


async def test_the_secret_goes_only_where_it_is_wanted() -> None:
    """auth_secret is sent as a bearer token unless that is switched off."""
    lookupds = Lookupds({lookup_url("a:1", "t"): answer(ANSWER)})
    for skip, expected in ((True, "Bearer hush"), (False, None)):
        config = Config(auth_secret="hush", skip_lookupd_authorization=skip)
        discovery = Discovery("t", config, lookupds.get)
        discovery.add("a:1")
        await discovery.poll()
        assert lookupds.headers.get("Authorization") == expected


async def test_an_nsqlookupd_over_https(tmp_path: Path) -> None:
    """The TLS options for nsqd apply; a bad file fails the poll, not the consumer."""
    plain = Lookupds({lookup_url("a:1", "t"): answer(ANSWER)})
    secured = Lookupds({lookup_url("https://a:1", "t"): answer(ANSWER)})
    ca = tmp_path / "ca.pem"
    authority().cert_pem.write_to_path(str(ca))
    config = Config(tls_root_ca_file=str(ca))
    discovery = Discovery("t", config, plain.get)
    discovery.add("a:1")
    await discovery.poll()
    assert plain.ssl_context is None
    discovery = Discovery("t", config, secured.get)
    discovery.add("https://a:1")
    await discovery.poll()
    assert secured.ssl_context is config.ssl_context()
    ca.unlink()
    with pytest.raises(DiscoveryError, match="tls_root_ca_file"):
        await discovery.poll()


def test_the_last_one_stays() -> None:
    """The last nsqlookupd cannot be removed, nor can an unknown one."""
    discovery = Discovery("t", Config())
    discovery.add("a:1")
    discovery.add("b:1")
    discovery.remove("a:1")
    with pytest.raises(LastLookupdError):
        discovery.remove("b:1")
    with pytest.raises(KeyError):
        discovery.remove("c:1")


@pytest.mark.parametrize(("interval_s", "gap_s"), [(60, 1.0), (0.5, 0.5)])
async def test_polls_keep_their_distance(
    interval_s: float, gap_s: float, autojump_clock: MockClock
) -> None:
    """However often a poll is requested: the next is a second after the last one, or as long
    after it as the interval is, if that is shorter."""
    polled_s = []

    async def note(addresses: list[str]) -> None:
        polled_s.append(trio.current_time())

    lookupds = Lookupds({lookup_url("a:1", "t"): answer(ANSWER)})
    config = Config(lookupd_poll_interval_s=interval_s, lookupd_poll_jitter=0)
    discovery = Discovery("t", config, lookupds.get)
    discovery.add("a:1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(discovery.run, note, lambda error: None, Random(1))
        for _ in range(100):
            await trio.sleep(0.1)
            discovery.request_poll()
        nursery.cancel_scope.cancel()
    assert [after - before for before, after in pairwise(polled_s)] == pytest.approx(
        [gap_s] * (len(polled_s) - 1)
    )
    assert len(polled_s) >= 10
