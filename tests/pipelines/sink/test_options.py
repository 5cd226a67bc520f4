"""Options and columns of the sink: what is wrong is told with what is valid."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DoubleType, ShortType, StringType, StructType

from pipelines.errors import ColumnsError, OptionsError
from pipelines.sink.commands import check_batch, check_schema
from pipelines.sink.options import SINK, SinkOptions
from tests.pipelines.sink.rows import options


def test_options_reach_the_client() -> None:
    """Its own by client.*, in any case of letters; all of it can be sent to executors."""
    found = SinkOptions.read(
        {
            "TOPIC": "t",
            "nsqd.tcp.addresses": "a:1, b:2",
            "batchmessages": "7",
            "batchbytes": "2m",
            "publishtimeout": "250ms",
            "client.auth_secret": "secret",
            "client.snappy": "true",
            "client.write_timeout": "3s",
        }
    )
    assert found.nsqd_tcp_addresses == ("a:1", "b:2")
    assert (found.limits.max_messages, found.limits.max_bytes) == (7, 2 << 20)
    assert found.publish_timeout_s == 0.25
    assert (found.client.auth_secret, found.client.snappy) == ("secret", True)
    assert found.client.write_timeout_s == 3.0
    assert pickle.loads(pickle.dumps(found)) == found
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nope": "1"}, "there is no option 'nope'"),
        ({"topik": "t"}, "is topic meant"),
        # What start("x") and save("x") make of "x".
        ({"path": "x"}, "there is no option 'path'"),
        ({"topic": "not ok"}, "topic: 'not ok' is not a valid name"),
        ({"nsqd.tcp.addresses": "a"}, "'a' is not host:port"),
        ({"nsqd.tcp.addresses": "tcp://foo:4150"}, "'tcp://foo:4150' is not host:port"),
        ({"lookupd.http.addresses": "a:4161,foo"}, "'foo' is not host:port of an nsqlookupd"),
        ({"nsqd.tcp.addresses": ""}, "nsqd.tcp.addresses or lookupd.http.addresses is required"),
        ({"mode": "staged"}, "mode=staged and stagePath must be set together"),
        ({"stagePath": "/x"}, "mode=staged and stagePath must be set together"),
        ({"mode": "staged", "stagePath": "gs://b/stage"}, "stagePath: gs://b/stage is a URL"),
        ({"mode": "twice"}, "'twice' is none of direct, staged"),
        ({"publishTimeout": "0"}, "publishTimeout must be above 0"),
        ({"client.nope": "1"}, "client: there is no option 'nope'"),
        ({"client.tls_root_ca_file": "/nowhere.pem"}, "client: .*nowhere.pem"),
    ],
)
def test_wrong_options_are_told_with_the_valid_ones(given: dict[str, str], said: str) -> None:
    """What is wrong, then every option there is."""
    right = {"nsqd.tcp.addresses": "a:1", "topic": "t"} | given
    with pytest.raises(OptionsError, match=said) as caught:
        SinkOptions.read({name: told for name, told in right.items() if told})
    assert all(option.name in str(caught.value) for option in SINK)


def test_sparks_own_option_is_no_mistake() -> None:
    """Spark hands the options of the whole query to the sink."""
    assert options("a:1", checkpointLocation="/x", queryName="q").topic == "t"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": pa.int64()}, "body is int64; valid are body"),
        ({"body": pa.binary(), "x": pa.binary()}, "x is unknown; valid"),
        ({"topic": pa.string()}, "body is missing"),
        ({"body": pa.binary(), "topic": pa.binary()}, "topic is binary"),
        ({"body": pa.binary(), "defer_ms": pa.float64()}, "defer_ms is double"),
        ({"body": pa.binary(), "defer_ms": pa.uint64()}, "defer_ms is uint64"),
    ],
)
def test_wrong_columns_are_told_in_one_line(columns: dict[str, pa.DataType], said: str) -> None:
    """What is wrong, and what is valid."""
    with pytest.raises(ColumnsError, match=said) as caught:
        check_batch(pa.schema(list(columns.items())), "t")
    assert "\n" not in str(caught.value)


def test_without_a_topic_there_has_to_be_its_column() -> None:
    """The option or the column."""
    body = pa.schema([("body", pa.string())])
    check_batch(body, "t")
    with pytest.raises(ColumnsError, match="topic is missing"):
        check_batch(body, None)


def test_sparks_types_are_held_to_the_same() -> None:
    """Before any task runs."""
    schema = StructType()
    for name, kind in (("body", StringType()), ("defer_ms", DoubleType()), ("x", StringType())):
        schema = schema.add(name, kind)
    with pytest.raises(ColumnsError, match="defer_ms is double, x is unknown, topic is missing"):
        check_schema(schema, None)
    right = StructType().add("body", BinaryType()).add("topic", StringType())
    check_schema(right.add("defer_ms", ShortType()), None)
