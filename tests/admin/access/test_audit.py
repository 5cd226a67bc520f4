"""Who did what: kept, bounded, and in a file that stays readable."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from quart import Response

from admin.access import audit as audit_module
from admin.access.audit import MAX_ENTRIES, MAX_REFUSALS, MAX_TEXT, Audit, Entry
from admin.access.modes import Mode
from admin.user_action import UserAction
from tests.admin.access.support import basic, site
from tests.descriptors import no_free_descriptors


def entry(**more: Any) -> Entry:
    """An entry with little in it."""
    said: dict[str, Any] = {
        "time_s": 1.0,
        "user": "ann",
        "role": "admin",
        "how": "session",
        "address": "::1",
        "user_agent": "",
        "method": "POST",
        "path": "/",
        "status": 200,
    }
    return Entry(**(said | more))


def test_it_is_bounded_and_refusals_push_nothing_out() -> None:
    """The newest are kept; somebody who is refused a thousand times hides nothing."""
    audit = Audit()
    audit.add_entry(entry(action="first"))
    for number in range(10 * MAX_REFUSALS):
        audit.add_entry(entry(time_s=2.0 + number, refused=True))
    kept = audit.entries()
    assert (len(kept), kept[-1].action) == (MAX_REFUSALS + 1, "first")
    for number in range(2 * MAX_ENTRIES):
        audit.add_entry(entry(time_s=10_000.0 + number))
    kept = audit.entries()
    assert len(kept) == MAX_REFUSALS + MAX_ENTRIES
    assert [one.time_s for one in kept] == sorted([one.time_s for one in kept], reverse=True)


@given(texts=st.lists(st.text(st.characters(codec=None), max_size=300), min_size=4, max_size=4))
def test_no_name_spoils_the_file(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    """Whatever somebody calls themselves: a line each, that any JSON reader reads."""
    path = tmp_path_factory.mktemp("audit") / "audit"
    audit = Audit(str(path))
    user, agent, where, note = texts
    audit.add_entry(entry(user=user, user_agent=agent, path=where, note=note))
    audit.add_entry(entry(user="next"))
    content = path.read_bytes()
    assert content.isascii()
    first, second = [json.loads(line) for line in content.splitlines()]
    assert first.get("user", "") == user[:MAX_TEXT]
    assert first.get("note", "") == note[:MAX_TEXT]
    assert second["user"] == "next"


def test_the_file_may_be_rotated_and_is_the_owners(tmp_path: Path) -> None:
    """A file that was moved away is begun anew."""
    path = tmp_path / "audit"
    audit = Audit(str(path))
    audit.add_entry(entry())
    path.rename(tmp_path / "old")
    audit.add_entry(entry(user="bob"))
    assert json.loads(path.read_bytes())["user"] == "bob"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_loses_no_more_than_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What could not be written is counted and logged; a line cut short spoils no other."""
    path = tmp_path / "audit"
    audit = Audit(str(path))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    audit.add_entry(entry())
    monkeypatch.undo()
    audit.add_entry(entry(user="bob"))
    assert audit.lost == 1
    assert "No space left on device (1 entries lost)" in caplog.text
    assert len(audit.entries()) == 2
    assert json.loads(path.read_bytes().splitlines()[1])["user"] == "bob"


def test_refusals_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many in a minute are written, and in the next again; what was done is always written."""
    monkeypatch.setattr(audit_module, "_MAX_REFUSALS_PER_MINUTE", 3)
    path = tmp_path / "audit"
    audit = Audit(str(path))
    for time_s in (0.0, 60.0):
        for _ in range(10):
            audit.add_entry(entry(time_s=time_s, refused=True))
        audit.add_entry(entry(time_s=time_s))
    assert len(path.read_bytes().splitlines()) == 2 * (3 + 1)


def done(action: str, **more: Any) -> UserAction:
    """Something that was done."""
    said: dict[str, Any] = {"user": "", "remote_ip": "", "user_agent": "", "url": ""}
    return UserAction(action=action, time_s=time.time(), **(said | more))


async def test_each_thing_that_is_done_is_an_entry() -> None:
    """Who, from where, what and how it ended; a request that does two things has two."""
    async with site(Mode.PASSWORD) as found:

        async def create(**parts: str) -> Response:
            found.access.observe(done("create_topic", topic="t", warnings=("one down",)))
            found.access.observe(done("create_channel", topic="t", channel="c"))
            return Response(b"", 202)

        found.app.view_functions["POST /api/topics"] = create
        await found.ask("POST", "/api/topics", headers=basic("operator", "right"))
        await found.ask("GET", "/api/topics", headers=basic("operator", "right"))
        await found.ask("PUT", "/config/log_level", headers=basic("operator", "right"))
        await found.ask("DELETE", "/api/topics/x", headers=basic("nobody", "guess"))
        await found.sign_in("ann-typed-her-password", "x")
        kept = [
            (one.user, one.how, one.method, one.action, one.channel, one.note, one.status)
            for one in sorted(found.access.audit.entries(), key=lambda one: one.time_s)
        ]
        assert kept == [
            ("operator", "basic", "POST", "create_topic", "", "one down", 202),
            ("operator", "basic", "POST", "create_channel", "c", "", 202),
            ("operator", "basic", "PUT", "", "", "FORBIDDEN", 403),
            ("(unknown)", "nobody", "POST", "sign_in", "", "wrong password", 303),
        ]


async def test_what_its_client_did_not_wait_for_is_kept_too() -> None:
    """A request that was let through is in the audit, also when it is cut off in the midst."""
    async with site(Mode.NONE) as found:
        begun = trio.Event()

        async def slow(**parts: str) -> Response:
            begun.set()
            await trio.sleep_forever()
            raise AssertionError

        found.app.view_functions["DELETE /api/topics/<topic>"] = slow
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.ask, "DELETE", "/api/topics/x")
            await begun.wait()
            nursery.cancel_scope.cancel()
        (kept,) = found.access.audit.entries()
        assert (kept.method, kept.path, kept.status) == ("DELETE", "/api/topics/x", None)


async def test_a_defect_is_in_the_audit_as_well() -> None:
    """What failed by our fault is an entry with its status."""
    async with site(Mode.NONE) as found:

        async def fails(**parts: str) -> Response:
            raise RuntimeError("a defect")

        found.app.view_functions["DELETE /api/topics/<topic>"] = fails
        assert (await found.ask("DELETE", "/api/topics/x")).status_code == 500
        (kept,) = found.access.audit.entries()
        assert kept.status == 500


def test_an_audit_file_that_cannot_be_opened_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without free descriptors entries are kept in memory, counted and logged as lost for the file;
    the next entry is written again."""
    path = tmp_path / "audit.log"
    audit = Audit(str(path))
    with no_free_descriptors():
        audit.add_entry(entry())
    assert (audit.lost, len(audit.entries())) == (1, 1)
    assert "Too many open files (1 entries lost)" in caplog.text
    audit.add_entry(entry())
    assert (audit.lost, len(audit.entries()), len(path.read_text().splitlines())) == (1, 2, 1)
