"""``mode=log`` over TLS, from an nsqd with a file of users; no Spark."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines.errors import NsqdAwayError, OptionsError, TopicLogError
from pipelines.source.datasource import NsqDataSource
from pipelines.topiclog.batch import TopicLogBatchReader
from pipelines.topiclog.options import TopicLogOptions
from pipelines.topiclog.stream import TopicLogStreamReader
from tests.pipelines.topiclog.reading import ALL, bodies_of, microbatch, numbered, options
from tests.pipelines.topiclog.secured import TOKENS, SecuredNsqd, secured_nsqd
from tests.soak import in_short_soak, in_soak
from trionsq.client import Config

WRONG = "nobody's-token-77"


@pytest.fixture
def nsqd(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[SecuredNsqd]:
    """A secured one; no log here has a token at the end."""
    caplog.set_level(logging.DEBUG)
    with secured_nsqd(tmp_path) as opened:
        yield opened
    assert not any(token in caplog.text for token in (*TOKENS.values(), WRONG))


def stream(nsqd: SecuredNsqd, user: str = "reader", **more: str) -> TopicLogStreamReader:
    values = options(nsqd.url, **more) | nsqd.options(user)
    return TopicLogStreamReader(TopicLogOptions.read_stream(values))


def test_a_stream_reads_with_the_right_to_subscribe(nsqd: SecuredNsqd) -> None:
    """Also the limit by bytes, and the figures: they need no right to administer."""
    nsqd.publish(numbered(1000))
    reader = stream(nsqd, maxBytesPerTrigger="1k")
    start = reader.initialOffset()
    assert start["positions"] == {"t": {nsqd.url: 0}}
    end, first = microbatch(reader, start)
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["backlog"] == 1000 - len(first) > 0
    assert report["backlogBytes"] > 6 * report["backlog"]
    rest = stream(nsqd)
    assert first + microbatch(rest, end)[1] == numbered(1000)


def test_history_is_read_so_too(nsqd: SecuredNsqd) -> None:
    """What Spark shows or sends of it: a task has the token, no text has."""
    nsqd.publish(numbered(100))
    values = options(nsqd.url, minPartitions="2") | nsqd.options()
    reader = TopicLogBatchReader(TopicLogOptions.read_batch(values))
    partitions = reader.partitions()
    assert bodies_of(reader, partitions) == numbered(100)
    token = TOKENS["reader"]
    assert token.encode() in pickle.dumps(partitions[0])
    shown = [*partitions, reader, reader._options, reader._options.client]
    assert not any(token in f"{one!r} {one}" for one in shown)


def test_a_channel_needs_the_right_to_administer(nsqd: SecuredNsqd) -> None:
    """Moving it takes messages from consumers."""
    nsqd.publish(numbered(10))
    with pytest.raises(TopicLogError, match=r"403 FORBIDDEN; client\.auth_secret .* admin"):
        stream(nsqd, channel="c").initialOffset()
    reader = stream(nsqd, "owner", channel="c")
    end, _ = microbatch(reader, reader.initialOffset())
    reader.commit(end)
    stats = json.loads(nsqd.ask("reader", "/stats?format=json&topic=t&channel=c"))
    assert stats["topics"][0]["channels"][0]["depth"] == 0


@pytest.mark.parametrize(("user", "status"), [("other", 403), (WRONG, 401)])
def test_without_the_right_nothing_is_read(nsqd: SecuredNsqd, user: str, status: int) -> None:
    """The right to a channel is not that to the topic; the error says what is needed."""
    nsqd.publish(numbered(1))
    secret = {"client.auth_secret": TOKENS.get(user, user)}
    values = options(nsqd.url) | nsqd.options() | secret
    reader = TopicLogStreamReader(TopicLogOptions.read_stream(values))
    with pytest.raises(TopicLogError, match=f"{status} .*; client.auth_secret has to be a token"):
        reader.initialOffset()


def test_an_nsqd_that_is_not_trusted_gets_no_token(nsqd: SecuredNsqd) -> None:
    """Its certificate is checked first; it counts as away, with the reason."""
    stranger = {"client.tls_root_ca_file": nsqd.papers.stranger}
    values = options(nsqd.url, nsqdTimeout="100ms") | nsqd.options() | stranger
    reader = TopicLogStreamReader(TopicLogOptions.read_stream(values))
    with pytest.raises(NsqdAwayError, match="CERTIFICATE_VERIFY_FAILED"):
        reader.initialOffset()


def test_a_token_that_is_taken_away_loses_no_message(nsqd: SecuredNsqd) -> None:
    """A task that nsqd refuses fails: what it may not read is not what the log lacks."""
    nsqd.publish(numbered(100))
    reader = stream(nsqd, failOnDataLoss="false")
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ALL))
    nsqd.set_users("shop")
    with pytest.raises(TopicLogError, match="401 UNAUTHORIZED"):
        bodies_of(reader, partitions)


def test_a_certificate_may_be_the_user(tmp_path: Path) -> None:
    """Then there is no token, for planning as for the tasks."""
    with secured_nsqd(tmp_path, tls_client_auth_policy="require-verify") as nsqd:
        nsqd.publish(numbered(10))
        papers = nsqd.papers
        more = {"client.tls_root_ca_file": papers.ca, "client.tls_cert": papers.client}
        reader = TopicLogStreamReader(TopicLogOptions.read_stream(options(nsqd.url) | more))
        assert microbatch(reader, reader.initialOffset())[1] == numbered(10)


@in_short_soak
def test_wrong_tokens_of_others_only_delay_a_query(nsqd: SecuredNsqd) -> None:
    """nsqd then refuses every token from their address for some seconds, with 429."""
    nsqd.publish(numbered(10))
    reader = stream(nsqd)
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ALL))
    for _ in range(12):
        with suppress(urllib.error.HTTPError):
            nsqd.ask(WRONG, "/info")
    with pytest.raises(urllib.error.HTTPError, match="429"):
        nsqd.ask("reader", "/info")
    assert bodies_of(reader, partitions) == numbered(10)
    assert stream(nsqd).initialOffset() == start


@in_soak
def test_spark_shows_no_token(nsqd: SecuredNsqd, tmp_path: Path) -> None:
    """Neither in plans and reports, nor in its log, its events, and the checkpoint."""
    nsqd.publish(numbered(100))
    (tmp_path / "told" / "events").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipelines.topiclog.telling", str(tmp_path / "told")],
        input=json.dumps(options(nsqd.url) | nsqd.options()),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "rows 100" in done.stdout
    assert done.stdout.count("nsq") > 5
    files = [path for path in (tmp_path / "told").rglob("*") if path.is_file()]
    assert {"events", "checkpoint", "table"} <= {
        path.relative_to(tmp_path).parts[1] for path in files
    }
    texts = {"said": done.stdout.encode(), "log": done.stderr.encode()}
    texts |= {str(path): path.read_bytes() for path in files}
    token = TOKENS["reader"].encode()
    assert [name for name, text in texts.items() if token in text] == []


@pytest.mark.parametrize("address", [f"https://u:{WRONG}@h:4152", f"u:{WRONG}@h:4151"])
def test_an_address_has_no_credentials(address: str) -> None:
    """It is a column, a part of offsets, and in logs. The error does not repeat them."""
    values = {"mode": "log", "topic": "t", "nsqd.http.addresses": address}
    with pytest.raises(OptionsError, match=r"has credentials: set client\.auth_secret") as told:
        NsqDataSource(values).schema()
    assert WRONG not in str(told.value)


def test_a_misspelt_option_does_not_show_its_value() -> None:
    """Whoever reads the error may not be the one who knows the secret."""
    values = {"mode": "log", "topic": "t", "nsqd.http.addresses": "h:1"}
    for name in ("client.auth_secrets", "auth_secret"):
        with pytest.raises(OptionsError) as told:
            TopicLogOptions.read_stream(values | {name: WRONG})
        assert WRONG not in str(told.value)
    assert WRONG not in repr(Config(auth_secret=WRONG))
