"""What auth servers are asked and what they allow, without anybody asking."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak import in_short_soak
from trionsq.wire import auth
from trionsq.wire.auth import Grant, Question, read_grant
from trionsq.wire.events import Auth

NAMES = st.text("abc_.-", min_size=1, max_size=6)
PATTERNS = st.sampled_from(["", "a", "^a", "a$", "^a.*b$", "[bc]", "^(ab|c)+$", ".*", r"\.", "a?b"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["ttl", "TTL", "identity", "authorizations", "topic", "channels", "permissions"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


def entry(
    topic: str = ".*",
    channels: tuple[str, ...] = (".*",),
    permissions: tuple[str, ...] = ("subscribe", "publish"),
) -> dict[str, Any]:
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def body(*authorizations: Any, **others: Any) -> bytes:
    return json.dumps({"ttl": 60, "authorizations": authorizations} | others).encode()


def grant(*authorizations: Any, **others: Any) -> Grant:
    return read_grant(body(*authorizations, **others))


def test_the_query_has_sorted_keys_and_encoded_values() -> None:
    """Every byte of a secret arrives, whether it is text or not."""
    question = Question(b"s&\xff =+\n", "::1", True, "ann@example")
    assert question.query() == (
        "common_name=ann%40example&remote_ip=%3A%3A1&secret=s%26%FF+%3D%2B%0A&tls=true"
    )


@given(st.binary(min_size=1), st.booleans(), st.text(st.characters(codec="utf-8")))
def test_a_query_can_be_read_back(secret: bytes, tls: bool, common_name: str) -> None:
    """A server that decodes the query sees what nsqd knows."""
    query = Question(secret, "127.0.0.1", tls, common_name).query()
    seen = parse_qs(query, keep_blank_values=True, encoding="latin-1")
    assert seen["secret"] == [secret.decode("latin-1")]
    assert seen["tls"] == ["true" if tls else "false"]
    assert parse_qs(query, keep_blank_values=True)["common_name"] == [common_name]


def test_a_post_has_lists_under_the_same_keys() -> None:
    """The form of the development head."""
    asked = json.loads(Question(b"s", "127.0.0.1", False, "").body())
    expected = {"common_name": [""], "remote_ip": ["127.0.0.1"], "secret": ["s"], "tls": ["false"]}
    assert asked == expected


def test_a_secret_is_not_shown() -> None:
    """Neither the command nor the question tells it to a log."""
    secret = b"hush-hush"
    shown = repr((Auth(secret), Question(secret, "127.0.0.1", False, "")))
    assert "hush" not in shown


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:4181", "http://127.0.0.1:4181/auth"),
        ("auth.example", "http://auth.example/auth"),
        ("https://auth.example/of/mine", "https://auth.example/of/mine"),
    ],
)
def test_an_address_is_asked_at_auth_and_a_url_as_it_is(address: str, url: str) -> None:
    """Both forms of --auth-http-address."""
    assert auth.question_url(address) == url


@pytest.mark.parametrize(
    ("url", "said", "again"),
    [
        ("http://a:80/auth", b'{"https_port": 443}', "https://a:443/auth"),
        ("http://[::1]:80/auth", b'{"https_port": 443}', "https://[::1]:443/auth"),
        ("https://a:80/auth", b'{"https_port": 443}', None),
        ("http://a:80/auth", b'{"https_port": 0}', None),
        ("http://a:80/auth", b'{"https_port": 65536}', None),
        ("http://a:80/auth", b'{"https_port": true}', None),
        ("http://a:80/auth", b'{"https_port": "443"}', None),
        ("http://a:80/auth", b'{"message": "FORBIDDEN"}', None),
        ("http://a:80/auth", b"no", None),
        ("http://a:80/auth", b"[]", None),
        ("http://a:x/auth", b'{"https_port": 443}', "https://a:443/auth"),
    ],
)
def test_a_403_may_send_us_to_https(url: str, said: bytes, again: str | None) -> None:
    """Only from http to https, only with a port, and only to the same host."""
    assert auth.https_retry_url(url, said) == again


def test_a_grant_has_what_the_server_said() -> None:
    """Identity, URL, time to live, number of entries."""
    got = grant(entry(), entry(), identity="ann", identity_url="http://id/ann", ttl=5)
    assert (got.identity, got.identity_url, got.ttl_s, len(got)) == ("ann", "http://id/ann", 5, 2)


def test_go_reads_an_answer_like_this() -> None:
    """Keys in any case, null for nothing, unknown keys passed over, the last of a key counts."""
    got = read_grant(
        b'{"TTL": 1, "ttl": 7, "identity": null, "more": [1.5], "Authorizations":'
        b' [{"Topic": "^t$", "channels": [".*"], "permissions": ["publish"]}, null]}'
    )
    assert (got.identity, got.ttl_s, len(got)) == ("", 7, 2)
    assert got.may_publish("t")
    assert not got.may_publish("u")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"ttl": 60, "authorizations": [NaN]}',
        b"[" * 100_000,
        b'{"ttl": ' + b"9" * 5000 + b"}",
        b"\xff\xfe",
        body(ttl=0),
        body(ttl=-1),
        body(ttl=1.5),
        body(ttl=60.0),
        body(ttl="60"),
        body(ttl=True),
        body(ttl=2**63),
        body(ttl=None),
        body(entry(), identity=5),
        body(entry(), identity_url=[]),
        body(5),
        body([]),
        json.dumps({"ttl": 60, "authorizations": {}}).encode(),
        body({"topic": 5}),
        body({"topic": "a", "channels": "a"}),
        body({"topic": "a", "channels": [5]}),
        body({"topic": "a", "permissions": "publish"}),
        body(entry(permissions=("admin",))),
        body(entry(permissions=("Publish",))),
        body(entry(), entry(permissions=("publish", ""))),
        body(entry("(")),
        body(entry("a", ("ok", "["))),
        body(entry(r"(a)\1")),
        body(entry("(?=a)")),
        body(entry("a{1001}")),
    ],
)
def test_an_invalid_answer_is_refused(said: bytes) -> None:
    """Whatever is wrong with it, all of it counts for nothing."""
    with pytest.raises(ValueError, match=r"^[a-z]"):
        read_grant(said)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_answer_is_a_grant_or_an_error(said: bytes) -> None:
    """Nothing else is raised, and a grant always ends."""
    try:
        got = read_grant(said)
    except ValueError:
        return
    assert got.ttl_s > 0
    got.may_publish("t")
    got.may_subscribe("t", "c")


def test_patterns_are_searches_and_publishing_has_the_empty_channel() -> None:
    """An entry for some channels only does not allow to publish."""
    got = grant(entry("mid", ("^c$",)), entry("^exact$", ("",), ("publish",)))
    assert got.may_subscribe("xx_mid_xx", "c")
    assert not got.may_subscribe("xx_mid_xx", "cc")
    assert not got.may_publish("xx_mid_xx")
    assert got.may_publish("exact")
    assert not got.may_publish("exactly")
    assert not got.may_subscribe("exact", "c")


def test_an_entry_without_channels_or_permissions_allows_nothing() -> None:
    """Nor does an empty list of entries."""
    for got in (grant(entry(channels=())), grant(entry(permissions=())), grant()):
        assert not got.may_publish("t")
        assert not got.may_subscribe("t", "c")


@given(
    st.lists(
        st.tuples(
            PATTERNS,
            st.lists(PATTERNS, max_size=2),
            st.lists(st.sampled_from(["subscribe", "publish"]), max_size=2),
        ),
        max_size=3,
    ),
    NAMES,
    NAMES,
)
def test_the_verdict_is_that_of_the_plain_rule(
    entries: list[tuple[str, list[str], list[str]]], topic: str, channel: str
) -> None:
    """The same as one line with Python's own patterns, asked once or again."""

    def allowed(wanted: str, channel: str) -> bool:
        return any(
            wanted in permissions
            and re.search(of_topic, topic) is not None
            and any(re.search(of_channel, channel) is not None for of_channel in of_channels)
            for of_topic, of_channels, permissions in entries
        )

    got = grant(
        *[entry(one, tuple(some), tuple(permissions)) for one, some, permissions in entries]
    )
    for _ in range(2):
        assert got.may_publish(topic) == allowed("publish", "")
        assert got.may_subscribe(topic, channel) == allowed("subscribe", channel)


def test_a_pattern_that_explodes_elsewhere_takes_linear_time() -> None:
    """Python's own patterns would need longer than the universe has existed for this one."""
    got = grant(entry("^(a+)+$", ("",)), entry("^(a|aa)+$", ("",)))
    assert not got.may_publish("a" * 63 + "b")


@pytest.mark.parametrize(
    "said",
    [
        body(*[entry(f"t{number}", ()) for number in range(4097)]),
        body(*[entry("x" * 900 + str(number)) for number in range(300)]),
        body(entry(r"((\pL{100}){10})")),
        body(*[entry("t", ("a", "b")) for _ in range(5462)]),
        # Each needs more than the 16 KiB of a small one, and all together more than 64 MiB.
        body(*[entry("x{40}" * 38 + str(number), ()) for number in range(600)]),
    ],
)
def test_patterns_are_bounded(said: bytes) -> None:
    """In number, in size together, and each in size."""
    with pytest.raises(ValueError, match="pattern"):
        read_grant(said)


@in_short_soak
def test_patterns_that_are_kept_are_bounded_in_bytes() -> None:
    """However many answers bring however large ones: by the limits that each was compiled with."""
    bound = sum(size.kept * (size.max_bytes + 4 * size.max_text) for size in auth._SIZES)
    assert bound <= 128 * 2**20
    for answer in range(4):
        read_grant(body(*[entry(f"a{answer}.{number}", ()) for number in range(2000)]))
    for number in range(200):
        read_grant(body(entry("b" * 2000 + str(number))))
        read_grant(body(entry("(?:)" * 50_000 + str(number))))
    for size, (text_max, compiler) in zip(auth._SIZES, auth._COMPILERS, strict=True):
        assert text_max == size.max_text
        assert 0 < compiler.cache_info().currsize <= size.kept


def test_groups_cost_nothing() -> None:
    """Nobody asks what a group matched, so a pattern with groups fits where one without does."""
    assert auth._compiled("(a)(b)").instructions == auth._compiled("ab").instructions


def test_many_entries_may_share_patterns() -> None:
    """Only different patterns count, so a long list of usual entries is fine."""
    got = grant(*[entry(f"^t{number}$", (".*", "")) for number in range(4000)])
    assert len(got) == 4000
    assert got.may_publish("t3999")


def test_verdicts_that_are_remembered_are_bounded() -> None:
    """A client that tries topic after topic does not make the broker grow."""
    got = grant(entry("^even", ("",)))
    for number in range(5000):
        assert got.may_publish(f"even{number}")
        assert not got.may_publish(f"odd{number}")
    assert len(got.verdicts) <= 1024


def test_the_answer_to_auth_is_compact_json_as_go_writes_it() -> None:
    """With the number of entries, and the characters that HTML minds escaped."""
    got = grant(entry(), identity='<a & "b">\u2028ä', identity_url="")
    assert auth.answer(got) == (
        b'{"identity":"\\u003ca \\u0026 \\"b\\"\\u003e\\u2028\xc3\xa4",'
        b'"identity_url":"","permission_count":1}'
    )


def test_half_a_surrogate_pair_does_no_harm() -> None:
    """JSON can say it, UTF-8 can't."""
    got = grant(identity="\ud800x")
    assert got.identity == "\ufffdx"
    assert auth.answer(got)
