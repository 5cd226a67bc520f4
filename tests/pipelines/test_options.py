"""Options as Spark passes them."""

from __future__ import annotations

import pytest

from pipelines.errors import OptionsError
from pipelines.options import (
    Option,
    boolean,
    byte_size,
    choice,
    duration_s,
    folder,
    integer,
    log_place,
    read_options,
    text,
    texts,
)

TABLE = (
    Option("walPath", text, "the folder", required=True),
    Option("maxInFlight", integer(1, 9), "how many", 5),
    Option("client.*", str, "passed on"),
)


def test_names_are_found_in_any_case_and_defaults_fill_in() -> None:
    """Names match in any case, as Spark passes lower case; missing options have defaults."""
    values = read_options(TABLE, {"walpath": "/w", "client.tls_v1": "true"}, "test")
    assert values == {"walPath": "/w", "maxInFlight": 5, "client.*": {"tls_v1": "true"}}


def test_all_that_is_wrong_is_told_at_once_with_the_valid_options() -> None:
    """One error lists unknown, invalid and missing options, and suggests the right spelling."""
    with pytest.raises(OptionsError) as told:
        read_options(TABLE, {"maxinflght": "3", "maxInFlight": "10"}, "test")
    lines = str(told.value).splitlines()
    assert lines == [
        "options of test:",
        "  there is no option 'maxinflght'; is maxInFlight meant?",
        "  maxInFlight: must be at most 9, not 10",
        "  walPath is required: the folder",
        "valid options:",
        "  walPath      the folder (required)",
        "  maxInFlight  how many (default 5)",
        "  client.*     passed on",
    ]


def test_defaults_are_shown_as_one_would_write_them() -> None:
    """The error shows defaults in the notation of a value."""
    table = (
        Option("size", byte_size, "a", 64 << 20),
        Option("time", duration_s, "b", 90.0),
        Option("flag", boolean, "c", True),
    )
    with pytest.raises(OptionsError) as told:
        read_options(table, {"x": ""}, "test")
    assert str(told.value).splitlines()[-3:] == [
        "  size  a (default 64m)",
        "  time  b (default 1m30s)",
        "  flag  c (default true)",
    ]


def test_values_are_read_as_people_write_them() -> None:
    """Sizes and durations may have units, lists have commas."""
    assert byte_size("4g") == 4 << 30
    assert byte_size("512 MB") == 512 << 20
    assert duration_s("1m30s") == 90.0
    assert duration_s("250") == 0.25
    assert texts("a, b") == ("a", "b")
    assert boolean("true") is True
    assert choice("a", "b")("B") == "b"


@pytest.mark.parametrize(
    ("parse", "told"),
    [
        (byte_size, "0"),
        (byte_size, "4x"),
        (duration_s, "-1s"),
        (duration_s, "soon"),
        (texts, "a,,b"),
        (text, " "),
        (boolean, "yes"),
        (integer(), "1.5"),
        (integer(0), "-1"),
        (choice("a"), "c"),
    ],
)
def test_what_makes_no_sense_is_refused(parse: object, told: str) -> None:
    """An invalid value is an error with a reason."""
    assert callable(parse)
    with pytest.raises(ValueError, match=r"^(?!invalid literal).+"):
        parse(told)


@pytest.mark.parametrize(
    "told",
    [
        "s3a://bucket/wal",
        "s3a:/bucket/wal",
        "hdfs://name:8020/wal",
        "gs://bucket/wal",
        "S3A://bucket/wal",
        "wal:one",
        "dbfs:/wal",
        "file://host/wal",
        "file://wal",
        "file://",
        "file:wal",
        "file:",
        "file:///wal%2",
        "file:///wal%00",
        "file:///wal%ff",
        "file:///wal#1",
        "file:///wal?x=1",
        "",
    ],
)
def test_a_url_is_no_folder(told: str) -> None:
    """A URL is refused: as a path it would be a new folder in the working directory."""
    with pytest.raises(ValueError, match=r"URL|host|relative|escapes|empty"):
        folder(told)


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ("/var/wal", "/var/wal"),
        ("run/wal", "run/wal"),
        ("/var/wal 100%25", "/var/wal 100%25"),
        ("./wal:one", "./wal:one"),
        ("run/s3a://x", "run/s3a://x"),
        ("C:/wal", "C:/wal"),
        ("file:///var/wal", "/var/wal"),
        ("file:/var/wal", "/var/wal"),
        ("FILE:///var/my%20wal%3F", "/var/my wal?"),
        ("file:///var/%C3%BC", "/var/\N{LATIN SMALL LETTER U WITH DIAERESIS}"),
    ],
)
def test_a_folder_is_a_path_or_a_file_url(told: str, path: str) -> None:
    """Escapes are decoded in a URL, and unchanged in a path."""
    assert folder(told) == path


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ("/var/wal", "/var/wal"),
        ("file:///var/my%20wal", "/var/my wal"),
        ("s3://bucket/logs/a", "s3://bucket/logs/a"),
        ("S3A://bucket/logs/a/", "s3://bucket/logs/a"),
        ("s3://bucket/logs/*", "s3://bucket/logs/*"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
    ],
)
def test_a_log_is_in_a_folder_or_a_store(told: str, place: str) -> None:
    """Hadoop's name of S3 is understood."""
    assert log_place(told) == place


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("hdfs://name:8020/wal", "HDFS"),
        ("HDFS:/wal", "HDFS"),
        ("ftp://host/wal", "of another kind"),
        ("dbfs:/wal", "of another kind"),
        ("s3:/bucket/wal", "lacks a bucket"),
        ("s3://bucket", "lacks a bucket or a prefix"),
        ("s3:///wal", "lacks a bucket"),
        ("file://host/wal", "host"),
    ],
)
def test_no_log_is_where_it_could_not_be_safe(told: str, why: str) -> None:
    """The text says what is possible."""
    with pytest.raises(ValueError, match=why):
        log_place(told)


@pytest.mark.parametrize(
    "told", ["s3://key:geheim@bucket/a", "s3://b/a?sig=geheim", "az://b/a#geheim"]
)
def test_a_url_with_credentials_is_refused_without_telling_them(told: str) -> None:
    """The URL would be sent to executors and be in logs; so would the error."""
    with pytest.raises(ValueError, match="environment") as caught:
        log_place(told)
    assert "geheim" not in str(caught.value)
