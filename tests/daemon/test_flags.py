"""Flags: the notations that operators' scripts use, read as NSQ's daemons read them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq import durations
from trionsq.broker.options import NsqdOptions
from trionsq.daemon import flags
from trionsq.options import FatalValueError, Value, table


def values(*words: str) -> dict[str, Value]:
    """Return the options that the words set."""
    return flags.parse(NsqdOptions, words).values


@pytest.mark.parametrize(
    "words",
    [
        ("-msg-timeout=2s",),
        ("--msg-timeout=2s",),
        ("-msg-timeout", "2s"),
        ("--msg-timeout", "2s"),
        ("--msg-timeout=1s", "--msg-timeout", "2s"),
    ],
)
def test_dashes_equals_and_spaces_are_alike(words: tuple[str, ...]) -> None:
    """One dash or two, `=` or a space: the same value; the last one counts."""
    assert values(*words) == {"msg_timeout_ns": 2 * durations.SECOND_NS}


@pytest.mark.parametrize("text", ["true", "1", "t", "T", "TRUE", "True"])
def test_a_boolean_is_true(text: str) -> None:
    """Each notation of true is read."""
    assert values(f"--deflate={text}") == {"deflate": True}


@pytest.mark.parametrize("text", ["false", "0", "f", "F", "FALSE", "False"])
def test_a_boolean_is_false(text: str) -> None:
    """Each notation of false is read."""
    assert values(f"--deflate={text}") == {"deflate": False}


def test_a_word_after_a_boolean_is_not_its_value() -> None:
    """`--verbose false` sets verbose, and `false` ends the flags."""
    parsed = flags.parse(NsqdOptions, ["--verbose", "false", "--node-id=1"])
    assert parsed.values == {"verbose": True}
    assert parsed.rest == ("false", "--node-id=1")


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (("--node-id=1", "--", "--node-id=2"), ("--node-id=2",)),
        (("--node-id=1", "file", "--node-id=2"), ("file", "--node-id=2")),
        (("--node-id=1", "-", "--node-id=2"), ("-", "--node-id=2")),
        (("--node-id=1", "", "--node-id=2"), ("", "--node-id=2")),
    ],
)
def test_reading_stops_at_the_first_word_that_is_no_flag(
    words: tuple[str, ...], rest: tuple[str, ...]
) -> None:
    """What follows the flags sets nothing and is handed back."""
    parsed = flags.parse(NsqdOptions, words)
    assert parsed.values == {"node_id": 1}
    assert parsed.rest == rest


def test_repeated_flags_gather_without_splitting() -> None:
    """Each use of a repeatable flag adds one item, commas and all."""
    assert values("--lookupd-tcp-address=a:1", "--lookupd-tcp-address", "b:2,c:3") == {
        "lookupd_tcp_address": ("a:1", "b:2,c:3")
    }


def test_percentiles_split_at_commas_and_descend() -> None:
    """The one list that splits at commas is sorted, the highest first."""
    flag = "--e2e-processing-latency-percentile"
    assert values(f"{flag}=0.5,0.99", f"{flag}=0.95") == {
        "e2e_processing_latency_percentile": (0.99, 0.95, 0.5)
    }


def test_a_percentile_that_is_no_number_ends_the_start() -> None:
    """That error is a fatal one, with its own text."""
    with pytest.raises(FatalValueError, match=r"^Could not parse: abc$"):
        values("--e2e-processing-latency-percentile=0.5,abc")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--log-level=WARN",), {"log_level": "warn"}),
        (("--tls-required",), {"tls_required": "true"}),
        (("--tls-required=0",), {"tls_required": "false"}),
        (("--tls-required=tcp-https",), {"tls_required": "tcp-https"}),
        (("--tls-min-version=tls1.2",), {"tls_min_version": "tls1.2"}),
        (("--http-address=",), {"http_address": ""}),
        (("--log-prefix", "--x"), {"log_prefix": "--x"}),
        (("--log-prefix=a=b",), {"log_prefix": "a=b"}),
        (("--max-msg-size=0x10",), {"max_msg_size": 16}),
        (("--max-msg-size=010",), {"max_msg_size": 8}),
        (("--broadcast-tcp-port=-1",), {"broadcast_tcp_port": -1}),
    ],
)
def test_values_of_each_kind(words: tuple[str, ...], expected: dict[str, Value]) -> None:
    """Levels in any case, tls-required with or without a value, numbers in each base."""
    assert values(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nope",), "flag provided but not defined: -nope"),
        (("--nope=1",), "flag provided but not defined: -nope"),
        (("---node-id=1",), "bad flag syntax: ---node-id=1"),
        (("--=1",), "bad flag syntax: --=1"),
        (("--node-id",), "flag needs an argument: -node-id"),
        (("--node-id=x",), 'invalid value "x" for flag -node-id: parse error'),
        (
            ("--node-id=9223372036854775808",),
            'invalid value "9223372036854775808" for flag -node-id: value out of range',
        ),
        (("--deflate=yes",), 'invalid boolean value "yes" for flag -deflate: parse error'),
        (
            ("--msg-timeout=60",),
            "invalid value \"60\" for flag -msg-timeout: invalid duration '60'",
        ),
        (
            ("--log-level=loud",),
            'invalid value "loud" for flag -log-level: '
            "must be one of debug, info, warn, error, fatal",
        ),
    ],
)
def test_a_bad_flag_is_named(words: tuple[str, ...], message: str) -> None:
    """The message says which flag is wrong, and how."""
    with pytest.raises(flags.UsageError) as raised:
        values(*words)
    assert str(raised.value) == message


@pytest.mark.parametrize("word", ["-h", "--h", "-help", "--help"])
def test_help_is_asked_for(word: str) -> None:
    """Each notation of --help ends the reading, before later words."""
    with pytest.raises(flags.HelpRequested):
        values(word, "--nope")


def test_older_forms_are_read_with_a_warning() -> None:
    """Scripts of older versions go on working, and their owner hears about it."""
    parsed = flags.parse(NsqdOptions, ["-max-message-size=5", "-worker-id"])
    assert parsed.values == {"max_msg_size": 5, "worker_id": True}
    assert len(parsed.warnings) == 2


def test_the_usage_names_every_flag_and_default() -> None:
    """The help text lists each flag."""
    text = flags.usage(NsqdOptions, "nsqd")
    for _, spec in table(NsqdOptions):
        assert f"--{spec.flag}" in text
    assert "until a message in flight is requeued (default 1m0s)" in text
    assert "offer snappy to clients (default true)" in text


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(durations.MIN_NS, durations.MAX_NS),
    st.text(),
    st.lists(st.text(), min_size=1),
    st.booleans(),
)
def test_what_is_written_is_read(
    number: int, duration_ns: int, text: str, items: list[str], boolean: bool
) -> None:
    """Every value of every kind survives being written as a flag."""
    words = [
        f"--max-msg-size={number}",
        "-msg-timeout",
        durations.render(duration_ns),
        "--log-prefix",
        text,
        f"--snappy={boolean}",
        *(f"--auth-http-address={item}" for item in items),
    ]
    assert values(*words) == {
        "max_msg_size": number,
        "msg_timeout_ns": duration_ns,
        "log_prefix": text,
        "snappy": boolean,
        "auth_http_address": tuple(items),
    }


@given(st.lists(st.sampled_from(["-", "--", "=", "node-id", "deflate", "x", "1", " "])))
def test_any_words_are_options_or_a_usage_error(pieces: list[str]) -> None:
    """Whatever an operator types, the answer is options or a message, never another exception."""
    words = "".join(pieces).split(" ")
    with contextlib.suppress(flags.UsageError):
        assert flags.parse(NsqdOptions, words).values.keys() <= {"node_id", "deflate"}
