"""Existing Python clients, unmodified, against a real nsqd process.

TRIONSQ_TEST_NSQD=/path/to/nsqd runs them against that one instead.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.foreign.matrix import CANNOT, CLIENTS, FEATURES, table
from tests.foreign.programs import ROOT, channel_stats, complete, run_program
from tests.processes import running_nsqd
from tests.secured import SECRET, Papers, auth_server, make_papers
from tests.soak import by_level, in_soak, more_in_soak

MESSAGES = by_level(test=10_000, short=30_000, full=100_000)
MESSAGES_SECURED = by_level(test=500, short=1_000, full=5_000)
IN_SHORT = ("deflate", "TLS + snappy", "TLS + AUTH")
"""Each part of every feature, in one of them; the others are for the full soak."""
ROOM_FOR_ALL = f"--mem-queue-size={MESSAGES}"
"""A publisher may be far ahead of its reader: no message is to wait for, or need, a disk."""
NOTHING = dict.fromkeys(
    ("depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count"), 0
)


@more_in_soak
@pytest.mark.parametrize("client", CLIENTS)
async def test_every_message_is_accounted_for(client: str, tmp_path: Path) -> None:
    """A client publishes many messages by PUB and MPUB and consumes each exactly once;
    afterwards the broker holds none of them, in flight or waiting."""
    async with running_nsqd(tmp_path, [ROOM_FOR_ALL]) as nsqd:
        code, out, err, _ = await run_program(client, nsqd, MESSAGES, tmp_path)
        assert code == 0, f"{err[-4000:]}\n{nsqd.log_tail()}"
        channel = await channel_stats(nsqd, client)
    assert json.loads(out) == complete(MESSAGES)
    assert {name: channel[name] for name in NOTHING} == NOTHING
    assert channel["message_count"] == MESSAGES


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates."""
    return make_papers(tmp_path_factory.mktemp("papers"))


@pytest.mark.parametrize(
    "feature",
    [pytest.param(name, marks=more_in_soak if name in IN_SHORT else in_soak) for name in FEATURES],
)
async def test_each_feature(feature: str, papers: Papers, tmp_path: Path) -> None:
    """It is in force when the messages pass, each exactly once. A client that can't do it says so
    itself; once it can, this fails, and the table is to be changed."""
    asked = FEATURES[feature]
    flags, options = [ROOM_FOR_ALL], []
    if asked.tls:
        flags += [*papers.nsqd_flags, "--tls-required=tcp-https"]
        options.append(f"ca={papers.ca}")
    if asked.compression:
        options.append(f"compression={asked.compression}")
    async with auth_server() as server:
        if asked.auth:
            flags.append(f"--auth-http-address={server.address}")
            options.append(f"secret={SECRET}")
        async with running_nsqd(tmp_path, flags) as nsqd:
            for client in CLIENTS:
                code, out, err, shown = await run_program(
                    client, nsqd, MESSAGES_SECURED, tmp_path, options
                )
                why = f"{client}: {err[-4000:]}\n{nsqd.log_tail()}"
                if (client, feature) in CANNOT:
                    assert code != 0, client
                    assert CANNOT[client, feature] in err, why
                    continue
                assert code == 0, why
                assert json.loads(out) == complete(MESSAGES_SECURED), client
                assert {name: shown.get(name, False) for name in asked.shown} == asked.shown, client


def test_the_documentation_tells_what_is_run() -> None:
    """The table there is the one that these tests go through, with the versions installed."""
    text = (ROOT / "docs" / "interoperation.md").read_text(encoding="utf-8")
    assert table() in text
    assert {name: version(name) for name in CLIENTS} == CLIENTS
